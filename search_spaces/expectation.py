"""What was expected of a plan when its trial was asked for, and how far off that was."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.estimate import Estimate
from search_spaces.outcome import Measured, Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The forecast of one plan, as a record keeps it; intervals hold with 95 % confidence.

    `peak_bytes` is what the fullest rank is expected to hold, `fits` the probability that this
    stays below the limit. `learned_from` counts the measured trials of the study that had
    corrected the forecast by then; what was expected without them stands beside it, so that one
    can tell what they taught. `filled` is the share of the work of the longest samples that a step
    has in the mean: the step of those takes so much longer.
    """

    samples_per_second: Estimate
    step_seconds: Estimate
    peak_bytes: Estimate
    fits: float  # 0 to 1
    limited_by: str  # the term that takes most of a step
    learned_from: int
    unlearned_samples_per_second: float
    unlearned_peak_bytes: float
    filled: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """How far a forecast was off: forecast over measurement, less 1."""

    speed: float
    memory: float | None  # None where no memory was seen to be held
    unlearned_speed: float
    unlearned_memory: float | None


def errors(expected: Expectation | None, outcome: Outcome) -> Errors | None:
    """How far off a forecast was; None where there was none, or nothing to hold against it."""
    if expected is None or not isinstance(outcome, Measured):
        return None
    rate, peak = outcome.samples_per_second.value, outcome.memory.peak_bytes
    if not rate:
        return None
    return Errors(
        speed=expected.samples_per_second.value / rate - 1,
        memory=expected.peak_bytes.value / peak - 1 if peak else None,
        unlearned_speed=expected.unlearned_samples_per_second / rate - 1,
        unlearned_memory=expected.unlearned_peak_bytes / peak - 1 if peak else None,
    )
