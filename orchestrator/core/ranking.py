"""Which plans are better, judged from records alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeGuard

from search_spaces.outcome import Measured, MemoryReading
from search_spaces.plan import Plan
from search_spaces.record import Record


def measured(record: Record) -> TypeGuard[Record]:
    """Whether the trial gave a measurement."""
    return isinstance(record.outcome, Measured)


def throughput(record: Record) -> float:
    """Samples per second, 0.0 where nothing was measured."""
    outcome = record.outcome
    return outcome.samples_per_second.value if isinstance(outcome, Measured) else 0.0


def keeps_headroom(memory: MemoryReading, headroom: float) -> bool:
    """Whether the peak leaves the share `headroom` of the limit free."""
    return memory.peak_bytes <= memory.limit_bytes * (1 - headroom)


def feasible(record: Record, headroom: float) -> bool:
    """Whether the plan trains and leaves the head-room free."""
    outcome = record.outcome
    return isinstance(outcome, Measured) and keeps_headroom(outcome.memory, headroom)


def ranked(records: Iterable[Record], headroom: float) -> list[Record]:
    """The feasible records, the fastest first; of equals the one with the lower peak."""

    def order(record: Record) -> tuple[float, int]:
        outcome = record.outcome
        peak = outcome.memory.peak_bytes if isinstance(outcome, Measured) else 0
        return (-throughput(record), peak)

    return sorted((record for record in records if feasible(record, headroom)), key=order)


def best(records: Iterable[Record], headroom: float) -> Record | None:
    """The fastest feasible record."""
    return next(iter(ranked(records, headroom)), None)


def equals_of_the_best(records: Sequence[Record], headroom: float) -> list[Record]:
    """The feasible records whose throughput interval overlaps the best one's, best first."""
    order = ranked(records, headroom)
    if not order:
        return []
    top = order[0].outcome
    assert isinstance(top, Measured)
    return [
        record
        for record in order
        if isinstance(record.outcome, Measured)
        and record.outcome.samples_per_second.overlaps(top.samples_per_second)
    ]


def record_of(records: Iterable[Record], plan: Plan) -> Record | None:
    """The record of a plan, the last if there are several."""
    return next((record for record in reversed(tuple(records)) if record.plan == plan), None)


def counts(records: Iterable[Record]) -> dict[str, int]:
    """How many trials ended in which kind of outcome."""
    return dict(Counter(record.outcome.kind for record in records))


def trials_since_best(records: Sequence[Record], headroom: float) -> int:
    """How many trials have ended since the best one did."""
    top = best(records, headroom)
    if top is None:
        return len(records)
    return sum(record.ended_at > top.ended_at for record in records)
