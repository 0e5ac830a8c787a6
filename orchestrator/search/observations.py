"""What trials have shown of candidates, as columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from orchestrator.core.failures import failure_decision
from orchestrator.core.objective import Objective
from orchestrator.search.gaussian import Numbers, Observations
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory, Record, TimedOut

MOST = 400  # sights that are looked at; what more of them teach is less than what they take
_EXACT = 0.003  # standard deviation of the logarithm of a peak that is measured twice
_BOUND = 0.01  # how sharp "ran out" and "fitted" are, as logarithms
_BROKEN = 0.1  # how sharp "broke" is, of a quantity of deviation 1
_LEAST_NOISE = 0.005  # of the logarithm of a throughput: what repeats differ by on a quiet machine
_BEATEN_NOISE = 0.03  # of few steps, which may agree by chance
_SURE = 1.96  # standard deviations from a value to the end of its interval
_STEPS_IN_VAIN = 3  # beside `objective.max_seconds`, what a deadline leaves room for at the least
CONSTRAINT = "memory"
# Optuna 4 kept constraints under this key as a list, and optuna-dashboard 0.21 reads no other:
# Optuna 5 keeps each under a key of its own ("constraints:memory"), which that version passes over
LISTED = "constraints"
_BEYOND = 1e-6  # a plan that ran out of memory is infeasible even without headroom


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one trial showed of a candidate.

    `log_rate` is the logarithm of its throughput, None if none was measured. `log_share` is that
    of its peak over the memory limit: of a trial that ran out, of what it is known to have wanted
    at least. A trial that shows none of all this says nothing.

    `study` is 0 for the study that is searched. Trials of another one may all be off together, by
    a deviation of `transfer_std` in logarithms; the best known candidate is none of them.
    """

    row: int
    log_rate: float | None = None
    rate_noise: float = 0.01
    too_slow: bool = False  # `log_rate` is what it stayed below
    log_share: float | None = None
    ran_out: bool = False
    fitted: bool = False  # it ran, whether or not its peak is known
    failed: bool = False  # it failed, and not for what its memory is measured by
    study: int = 0
    transfer_std: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether its throughput is known."""
        return self.log_rate is not None and not self.too_slow


def subsample(sights: Sequence[Observation]) -> list[Observation]:
    """All, or of very many the fastest, the last and some between, in their order."""
    if len(sights) <= MOST:
        return list(sights)
    third = MOST // 3
    by_rate = sorted(range(len(sights)), key=lambda at: -_speed(sights[at]))
    spread = np.linspace(0, len(sights) - third - 1, third).astype(int)
    last = range(len(sights) - third, len(sights))
    return [sights[at] for at in sorted({*by_rate[:third], *spread.tolist(), *last})]


def rates(sights: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Candidates whose throughput was measured or bounded, and the logarithms of it."""
    known = [sight for sight in sights if sight.log_rate is not None]
    return _rows(known), Observations(
        value=np.array([sight.log_rate for sight in known], dtype=float),
        noise=np.array([sight.rate_noise for sight in known], dtype=float),
        side=np.array([-1 if sight.too_slow else 0 for sight in known], dtype=np.int64),
        together=_together(known),
    )


def shares(sights: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Candidates of whose memory something is known: peaks, and bounds where there is none."""
    known = [
        sight for sight in sights if sight.ran_out or sight.fitted or sight.log_share is not None
    ]
    side = [1 if s.ran_out else 0 if s.log_share is not None else -1 for s in known]
    return _rows(known), Observations(
        value=np.array([sight.log_share or 0.0 for sight in known], dtype=float),
        noise=np.where(np.array(side) == 0, _EXACT, _BOUND).astype(float),
        side=np.array(side, dtype=np.int64),
        together=_together(known),
    )


def failures(sights: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Candidates that broke, as a quantity above 0, and those that did not, below."""
    known = [sight for sight in sights if sight.failed or sight.fitted or sight.ran_out]
    return _rows(known), Observations(
        value=np.zeros(len(known)),
        noise=np.full(len(known), _BROKEN),
        side=np.array([1 if sight.failed else -1 for sight in known], dtype=np.int64),
    )


def _together(sights: list[Observation]) -> Numbers | None:
    """The covariance of what trials of one other study are off by; None where there are none."""
    if not any(sight.study for sight in sights):
        return None
    study = np.array([sight.study for sight in sights])
    doubt = np.array([sight.transfer_std for sight in sights])
    same = (study[:, None] == study[None]) & (study[:, None] > 0)
    together: Numbers = np.outer(doubt, doubt) * same
    return together


def _speed(sight: Observation) -> float:
    return sight.log_rate if sight.log_rate is not None and sight.measured else -np.inf


def _rows(sights: list[Observation]) -> Numbers:
    return np.array([sight.row for sight in sights], dtype=np.intp)


def observation_of(record: Record, row: int, spec: SweepSpec) -> Observation | None:
    """What a record shows of the candidate in a row; None if nothing.

    Out of device memory is a bound of what was wanted. What ended otherwise without a measurement
    (out of the host's memory too, which nothing forecasts) broke. A trial that found no end in its
    time is slower than one which would have.
    """
    match record.outcome:
        case Measured(samples_per_second=rate, memory=memory, beaten=beaten):
            width = math.log(max(rate.high, rate.value) / rate.value)
            return Observation(
                row=row,
                log_rate=math.log(rate.value),
                rate_noise=max(width / _SURE, _BEATEN_NOISE if beaten else _LEAST_NOISE),
                log_share=math.log(memory.share) if memory.peak_bytes > 0 else None,
                fitted=True,
            )
        case OutOfMemory(where="device", excess=excess):
            return Observation(row=row, log_share=math.log1p(excess or 0.0), ran_out=True)
        case TimedOut(deadline_seconds=deadline):
            left = deadline - spec.objective.max_seconds
            return Observation(row=row, log_rate=_most(spec, left), too_slow=left > 0, failed=True)
        case other:
            return (
                Observation(row=row, failed=True)
                if failure_decision(other, second=True).prune
                else None
            )


def _most(spec: SweepSpec, seconds: float) -> float | None:
    """The logarithm of the throughput that so few steps in so much time would be."""
    if seconds <= 0:
        return None
    return math.log(_STEPS_IN_VAIN * spec.train.global_batch / seconds)


def constraints_of(record: Record, goal: Objective) -> Mapping[str, float]:
    """Constraint violations of a trial as shares; at 0 or below a constraint holds.

    `memory` is the peak, or the bytes wanted, over what the headroom leaves of the limit, less 1.
    The others are those of `Objective.lower_bounds`, which a plan that ran out of memory misses
    entirely. Empty for outcomes that say nothing of them.
    """
    match record.outcome:
        case Measured(memory=memory):
            missed = {CONSTRAINT: memory.share / (1 - goal.headroom) - 1}
            for metric, least in goal.lower_bounds:
                reached = goal.value(record, metric)
                missed[metric] = 1.0 if reached is None else 1 - reached.value / least
            return missed
        case OutOfMemory(excess=excess):
            wanted = (1 + (excess or 0.0)) / (1 - goal.headroom) - 1 + _BEYOND
            return {CONSTRAINT: wanted} | {metric: 1.0 for metric, _ in goal.lower_bounds}
        case _:
            return {}
