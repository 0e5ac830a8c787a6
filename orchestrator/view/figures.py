"""Figures that views, the report and MLflow derive from a sweep's state. Plain functions."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core.objective import record_of
from orchestrator.core.state import SweepState
from search_spaces.estimate import Estimate
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Record

_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How much of the budget is used; `left_seconds` is None until a trial has ended."""

    trials: int
    trials_of: int
    seconds: float
    seconds_of: float
    left_seconds: float | None


def progress(state: SweepState, now: float) -> Progress:
    """Budget used at `now`, and the time left, judged from the median trial so far."""
    budget = state.spec.budget
    seconds_of = budget.minutes * _SECONDS_PER_MINUTE
    seconds = max(now - state.started_at, 0.0)
    left = None
    if state.records:
        median = statistics.median(trial_seconds(record) for record in state.records)
        trials = max(budget.trials - len(state.records), 0)
        left = min(trials * median, max(seconds_of - seconds, 0.0))
    return Progress(
        trials=len(state.records),
        trials_of=budget.trials,
        seconds=seconds,
        seconds_of=seconds_of,
        left_seconds=left,
    )


def trial_seconds(record: Record) -> float:
    """Wall-clock of the trial in seconds."""
    return max(record.ended_at - record.started_at, 0.0)


def baseline_record(state: SweepState) -> Record | None:
    """The trial of the plan that a user would start with, None if it was not run."""
    return record_of(state.records, state.space.baseline)


def speedup(record: Record | None, baseline: Record | None) -> Estimate | None:
    """Samples per second of `record` over those of `baseline`; None unless both are measured.

    The interval takes the two measurements as independent: their relative half-widths add
    up in quadrature.
    """
    if record is None or baseline is None:
        return None
    ours, theirs = record.outcome, baseline.outcome
    if not (isinstance(ours, Measured) and isinstance(theirs, Measured)):
        return None
    if record.plan == baseline.plan:
        return Estimate(value=1.0, low=1.0, high=1.0)
    return quotient(ours.samples_per_second, theirs.samples_per_second)


def quotient(above: Estimate, below: Estimate) -> Estimate | None:
    """One rate over another, taken as independent of it; None where one of them is 0."""
    if not above.value or not below.value:
        return None
    ratio = above.value / below.value
    relative = math.hypot(above.relative_half_width, below.relative_half_width)
    return Estimate(value=ratio, low=ratio * max(1 - relative, 0.0), high=ratio * (1 + relative))


def over_the_line(record: Record, headroom: float) -> float | None:
    """Bytes wanted over those that the head-room leaves, less 1; None if nobody knows them.

    Negative where the plan keeps the head-room, 0.25 where it wanted a quarter too much.
    """
    match record.outcome:
        case Measured(memory=memory):
            return memory.share / (1 - headroom) - 1
        case OutOfMemory(wanted_bytes=wanted, limit_bytes=limit) if wanted and limit:
            return wanted / limit / (1 - headroom) - 1
        case _:
            return None


def nearest(records: Iterable[Record], headroom: float) -> Record | None:
    """The record that is least over the line, for when no plan keeps the head-room."""
    known = [
        (excess, record.number, record)
        for record in records
        if (excess := over_the_line(record, headroom)) is not None
    ]
    return min(known, key=lambda entry: entry[:2])[2] if known else None
