"""What a trial measured, and whether two trials differ beyond noise."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.objective import PEAKS_APART
from orchestrator.core.state import SweepState
from orchestrator.view.plan_words import lossy_words
from orchestrator.view.words import KIND_WORDS, outcome_words
from search_spaces.estimate import Estimate
from search_spaces.outcome import Measured
from search_spaces.plan import Plan
from search_spaces.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A trial of one side; what it did not measure is None. `wins` says that it is the answer."""

    trial: int
    plan: Plan
    lossy: str  # which knobs change the numerics, empty if none does
    kind: str  # how it ended, in a word or two
    outcome: str  # the same in a sentence
    samples_per_second: Estimate | None
    peak_bytes: int | None
    limit_bytes: int | None
    forecast: float | None  # samples per second, before the trial
    wins: bool


def measurement(record: Record, state: SweepState) -> Measurement:
    """What a trial of a study measured."""
    told = record.outcome if isinstance(record.outcome, Measured) else None
    expected = record.forecast
    return Measurement(
        trial=record.number,
        plan=record.plan,
        lossy=lossy_words(record.plan, state.spec),
        kind=KIND_WORDS[record.outcome.kind],
        outcome=outcome_words(record.outcome),
        samples_per_second=told.samples_per_second if told else None,
        peak_bytes=told.memory.peak_bytes if told else None,
        limit_bytes=told.memory.limit_bytes if told else None,
        forecast=expected.samples_per_second.value if expected else None,
        wins=record == state.best,
    )


def rates_apart(first: Record, second: Record) -> bool | None:
    """Whether two speeds differ beyond noise: their intervals lie apart, as equals are told."""
    ours, theirs = first.outcome, second.outcome
    if not (isinstance(ours, Measured) and isinstance(theirs, Measured)):
        return None
    return not ours.samples_per_second.overlaps(theirs.samples_per_second)


def peaks_apart(first: Record, second: Record) -> bool | None:
    """Whether two peaks differ by more than those of one plan from trial to trial."""
    ours, theirs = peak(first), peak(second)
    return None if ours is None or theirs is None else not ours.overlaps(theirs)


def peak(record: Record) -> Estimate | None:
    """A measured peak in bytes, with what peaks of one plan differ by."""
    if not isinstance(record.outcome, Measured):
        return None
    memory = record.outcome.memory
    noise = PEAKS_APART * memory.limit_bytes
    held = float(memory.peak_bytes)
    return Estimate(value=held, low=held - noise, high=held + noise)
