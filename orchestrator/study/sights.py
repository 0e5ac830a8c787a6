"""What records show of candidates, for a search."""

from __future__ import annotations

import math

from orchestrator.core.failures import reaction_to
from orchestrator.search.evidence import Sight
from search_spaces.outcome import Measured, OutOfMemory, TimedOut
from search_spaces.record import Record
from search_spaces.spec.schema import SweepSpec

_LEAST_NOISE = 0.005  # of the logarithm of a throughput: what repeats differ by on a quiet machine
_BEATEN_NOISE = 0.03  # of few steps, which may agree by chance
_SURE = 1.96  # standard deviations from a value to the end of its interval
_STEPS_IN_VAIN = 3  # beside `objective.max_seconds`, what a deadline leaves room for at the least


def sight_of(record: Record, row: int, spec: SweepSpec) -> Sight | None:
    """What a record shows of the candidate in a row; None if nothing.

    Out of device memory is a bound of what was wanted. What ended otherwise without a measurement
    (out of the host's memory too, which nothing forecasts) broke. A trial that found no end in its
    time is slower than one which would have.
    """
    match record.outcome:
        case Measured(samples_per_second=rate, memory=memory, beaten=beaten):
            width = math.log(max(rate.high, rate.value) / rate.value)
            return Sight(
                row=row,
                log_rate=math.log(rate.value),
                rate_noise=max(width / _SURE, _BEATEN_NOISE if beaten else _LEAST_NOISE),
                log_share=math.log(memory.share) if memory.peak_bytes > 0 else None,
                fitted=True,
            )
        case OutOfMemory(where="device", excess=excess):
            return Sight(row=row, log_share=math.log1p(excess or 0.0), ran_out=True)
        case TimedOut(deadline_seconds=deadline):
            left = deadline - spec.objective.max_seconds
            return Sight(row=row, log_rate=_most(spec, left), too_slow=left > 0, broke=True)
        case other:
            return Sight(row=row, broke=True) if reaction_to(other, second=True).cut else None


def _most(spec: SweepSpec, seconds: float) -> float | None:
    """The logarithm of the throughput that so few steps in so much time would be."""
    if seconds <= 0:
        return None
    return math.log(_STEPS_IN_VAIN * spec.train.global_batch / seconds)
