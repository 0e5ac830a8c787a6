"""Which plans are better, judged from records alone."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from orchestrator.core.goal import Goal
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.plan import Plan
from search_spaces.record import Record


def measured(record: Record) -> TypeGuard[Record]:
    """Whether the trial gave a measurement."""
    return isinstance(record.outcome, Measured)


def throughput(record: Record) -> float:
    """Samples per second, 0.0 where nothing was measured."""
    outcome = record.outcome
    return outcome.samples_per_second.value if isinstance(outcome, Measured) else 0.0


def score(record: Record, goal: Goal) -> float:
    """What records are compared by, minus infinity where it is not known."""
    reached = goal.value(record)
    return -math.inf if reached is None else reached.value


def ranked(records: Iterable[Record], goal: Goal) -> list[Record]:
    """The feasible records, the best first; of equals the one with the lower peak."""
    feasible = (record for record in records if goal.feasible(record))
    return sorted(feasible, key=lambda record: (-score(record, goal), _peak(record)))


def best(records: Iterable[Record], goal: Goal) -> Record | None:
    """The best feasible record."""
    return next(iter(ranked(records, goal)), None)


def equals_of_the_best(records: Iterable[Record], goal: Goal) -> list[Record]:
    """The feasible records whose interval overlaps the best one's, best first."""
    known = [(record, reached) for record in records if (reached := goal.value(record))]
    order = sorted(known, key=lambda each: (-each[1].value, _peak(each[0])))
    # of thousands of records few are near the best: whether others are feasible does not matter
    top = next((reached for record, reached in order if goal.feasible(record)), None)
    if top is None:
        return []
    return [record for record, reached in order if reached.overlaps(top) and goal.feasible(record)]


def record_of(records: Iterable[Record], plan: Plan) -> Record | None:
    """The record of a plan, the last if there are several."""
    return next((record for record in reversed(tuple(records)) if record.plan == plan), None)


def limit_of(record: Record) -> int | None:
    """The memory that one rank might use, in bytes; None if the trial does not say."""
    match record.outcome:
        case Measured(memory=memory):
            return memory.limit_bytes
        case OutOfMemory(limit_bytes=limit):
            return limit
        case _:
            return None


def counts(records: Iterable[Record]) -> dict[str, int]:
    """How many trials ended in which kind of outcome."""
    return dict(Counter(record.outcome.kind for record in records))


def trials_since_best(records: Sequence[Record], goal: Goal) -> int:
    """How many trials have ended since the best one did."""
    top = best(records, goal)
    if top is None:
        return len(records)
    return sum(record.ended_at > top.ended_at for record in records)


def _peak(record: Record) -> int:
    return record.outcome.memory.peak_bytes if isinstance(record.outcome, Measured) else 0
