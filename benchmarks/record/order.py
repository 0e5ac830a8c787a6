"""Order in which a sample of plans is measured."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.placement import Processes
from search_spaces.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One measurement of a plan; `repeat` counts from 1."""

    plan: Plan
    repeat: int


def sample(plans: Sequence[Plan], limit: int, seed: int) -> tuple[Plan, ...]:
    """Draws `limit` plans, each from a stretch of its own; all if there are no more.

    Plans of one structure stand together in a space, so that each has its share of the sample.
    """
    count = len(plans)
    if limit >= count:
        return tuple(plans)
    rng = random.Random(f"sample {seed}")
    edges = [stretch * count // limit for stretch in range(limit + 1)]
    return tuple(plans[rng.randrange(*edges[i : i + 2])] for i in range(limit))


def turns(plans: Sequence[Plan], repeats: int, device: str, seed: int) -> tuple[Turn, ...]:
    """All plans once, then all of them again, each time in a random order of its own.

    Plans that need other processes are kept together, so that groups of workers are seldom
    restarted; a repeat begins with those that the one before it ended with.
    """
    by_processes: dict[Processes, list[Plan]] = {}
    for plan in plans:
        by_processes.setdefault(Processes.of(plan, device), []).append(plan)
    found: list[Turn] = []
    for repeat in range(1, repeats + 1):
        rng = random.Random(f"repeat {repeat} {seed}")
        groups = list(by_processes.values())
        for group in groups if repeat % 2 else reversed(groups):
            shuffled = rng.sample(group, len(group))
            found += (Turn(plan=plan, repeat=repeat) for plan in shuffled)
    return tuple(found)
