"""Plans to measure: a sample of a space, their order, and the fastest of them."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.record.rows import Cells, knob_cells
from orchestrator.core.placement import Processes
from search_spaces.errors import UserError
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measurement of a plan; `repeat` counts from 1."""

    plan: Plan
    repeat: int


def sample(plans: Sequence[Plan], limit: int) -> tuple[Plan, ...]:
    """Draws `limit` plans, each from a stretch of its own; all if there are no more.

    Plans of one structure stand together in a space, so that each has its share of the sample.
    """
    count = len(plans)
    if limit >= count:
        return tuple(plans)
    rng = random.Random("sample 0")
    edges = [stretch * count // limit for stretch in range(limit + 1)]
    return tuple(plans[rng.randrange(*edges[i : i + 2])] for i in range(limit))


def turns(plans: Sequence[Plan], repeats: int, device: str) -> tuple[Turn, ...]:
    """All plans once, then all of them again, each time in a random order of its own.

    Plans that need other processes are kept together, so that groups of workers are seldom
    restarted; a repeat begins with those that the one before it ended with.
    """
    by_processes: dict[Processes, list[Plan]] = {}
    for plan in plans:
        by_processes.setdefault(Processes.of(plan, device), []).append(plan)
    found: list[Turn] = []
    for repeat in range(1, repeats + 1):
        rng = random.Random(f"repeat {repeat} 0")
        groups = list(by_processes.values())
        for group in groups if repeat % 2 else reversed(groups):
            shuffled = rng.sample(group, len(group))
            found += (Turn(plan=plan, repeat=repeat) for plan in shuffled)
    return tuple(found)


def fastest(
    plans: Sequence[Plan], rows: Sequence[Cells], knobs: Sequence[str], count: int
) -> tuple[Plan, ...]:
    """Returns the `count` plans of the highest mean throughput, in the order of the space.

    Only repeats that every plan has are compared, so that an earlier run of the same command
    changes nothing. What failed in half of its repeats or more is not fast.

    Raises:
        UserError: If a plan has no row yet.
    """
    by_plan: dict[tuple[str, ...], list[Cells]] = defaultdict(list)
    for row in rows:
        by_plan[tuple(row[name] for name in knobs)].append(row)
    found = {plan: by_plan[knob_cells(plan, knobs)] for plan in plans}
    shared = min(map(len, found.values()))
    if not shared:
        lacking = sum(not own for own in found.values())
        raise UserError(f"{lacking:,} of {len(plans):,} plans are not measured: run without --best")
    rates: dict[Plan, float] = {}
    for plan, own in found.items():
        told = [row.get("samples_per_s") for row in own if int(row["repeat"]) <= shared]
        ran = [float(rate) for rate in told if rate]
        rates[plan] = sum(ran) / len(ran) if 2 * len(ran) > shared else 0.0
    best = sorted(plans, key=lambda plan: -rates[plan])[:count]
    return tuple(plan for plan in plans if plan in best and rates[plan])
