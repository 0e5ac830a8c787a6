"""The plans of a recording that are worth more repeats."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from benchmarks.record.rows import Cells, knob_cells
from benchmarks.record.table import RecordingError
from search_spaces.plan import Plan


def fastest(
    plans: Sequence[Plan], rows: Sequence[Cells], knobs: Sequence[str], count: int
) -> tuple[Plan, ...]:
    """Returns the `count` plans of the highest mean throughput, in the order of the space.

    Only repeats that every plan has are compared: what is measured of some plans alone, as by an
    earlier run of the same command, changes nothing.

    Raises:
        RecordingError: If a plan has no row yet.
    """
    by_plan: dict[tuple[str, ...], list[Cells]] = defaultdict(list)
    for row in rows:
        by_plan[tuple(row[name] for name in knobs)].append(row)
    found = {plan: by_plan[knob_cells(plan, knobs)] for plan in plans}
    shared = min(len(own) for own in found.values())
    if not shared:
        lacking = sum(not own for own in found.values())
        raise RecordingError(
            f"which plans are the {count:,} best is known when each has been measured once, and"
            f" {lacking:,} of {len(plans):,} have not: run the command without --best first"
        )
    rates = {
        plan: _rate([row for row in own if int(row["repeat"]) <= shared], shared)
        for plan, own in found.items()
    }
    best = set(sorted(plans, key=lambda plan: -rates[plan])[:count])
    return tuple(plan for plan in plans if plan in best and rates[plan])


def _rate(rows: Sequence[Cells], repeats: int) -> float:
    """Mean samples/s; 0 of what failed in half of its repeats or more."""
    rates = [float(rate) for row in rows if (rate := row.get("samples_per_s"))]
    return sum(rates) / len(rates) if 2 * len(rates) > repeats else 0.0
