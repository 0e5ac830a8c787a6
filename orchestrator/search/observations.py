"""Observations: what the search sees of records, as columns."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.core.failures import failure_decision
from orchestrator.core.objective import Objective, thrashes
from orchestrator.core.records import Record
from orchestrator.core.trial_noise import TrialNoise
from orchestrator.search.gaussian import Numbers, Observations
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory, TimedOut

MAX_OBSERVATIONS = 400  # that are used; more cost more time than they improve the search
_PEAK_NOISE = 0.003  # standard deviation of the logarithm of a repeated peak
_BOUND_NOISE = 0.01  # of "ran out" and "fitted", in logarithms
_FAILURE_NOISE = 0.1  # of "failed", for a latent of standard deviation 1
_MIN_NOISE = 0.005  # of the logarithm of a throughput: repeats on a quiet machine
_BEATEN_NOISE = 0.03  # of a trial ended early: its few steps may agree by chance
_INTERVAL = 1.96  # standard deviations from a value to the end of its 95 % interval
_DEADLINE_STEPS = 3  # steps that fit into a deadline besides `objective.max_seconds`, at least
CONSTRAINT = "memory"
# Optuna 4 kept all constraints in a list under this key, and optuna-dashboard 0.21 reads only that;
# Optuna 5 keeps each under a key of its own ("constraints:memory")
CONSTRAINTS_LIST = "constraints"
_MIN_EXCESS = 1e-6  # a plan that ran out of memory is infeasible even without headroom


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Result of one trial of a candidate; without any result it carries no information.

    `log_rate` is the logarithm of the throughput, None if not measured. `log_share` is that of the
    peak over the memory limit; if the trial ran out of memory, a lower bound of what it needed.

    `study` is 0 for the study that is searched. Trials of another study share an error with
    standard deviation `transfer_std`, in logarithms, and none of them can be the incumbent. Trials
    of this one share errors of standard deviation `drift` with those that ran near `at`, in seconds
    since the epoch; `drift_seconds` later the correlation of these errors has fallen to 1 / e.
    """

    row: int
    log_rate: float | None = None
    rate_noise: float = 0.01
    too_slow: bool = False  # `log_rate` is an upper bound
    log_share: float | None = None
    ran_out: bool = False
    fitted: bool = False  # it ran within the limit, even if its peak is unknown
    failed: bool = False  # for a reason other than device memory
    study: int = 0
    transfer_std: float = 0.0
    at: float = 0.0
    drift: float = 0.0
    drift_seconds: float = 1.0

    @property
    def measured(self) -> bool:
        """True if the throughput is a value and not a bound."""
        return self.log_rate is not None and not self.too_slow


def with_noise(observations: Iterable[Observation], noise: TrialNoise) -> list[Observation]:
    """Returns the observations, each as uncertain as trials of the same plan differ at least.

    Args:
        observations: Whose noise is what the steps within a trial show.
        noise: How trials of a plan differ.
    """
    alone, drift = (noise.deviation * part**0.5 for part in (1 - noise.drift, noise.drift))
    told = {"drift": drift, "drift_seconds": noise.seconds}
    return [
        replace(one, rate_noise=max(one.rate_noise, alone), **told) if one.measured else one
        for one in observations
    ]


def subsample(observations: Sequence[Observation]) -> list[Observation]:
    """Returns at most `MAX_OBSERVATIONS` of them in order: the fastest, the latest, some others."""
    if len(observations) <= MAX_OBSERVATIONS:
        return list(observations)
    third = MAX_OBSERVATIONS // 3
    by_rate = sorted(range(len(observations)), key=lambda at: -_speed(observations[at]))
    spread = np.linspace(0, len(observations) - third - 1, third).astype(int)
    last = range(len(observations) - third, len(observations))
    return [observations[at] for at in sorted({*by_rate[:third], *spread.tolist(), *last})]


def rates(observations: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Returns the candidates with a measured or bounded throughput, and its logarithms."""
    measured = [observation for observation in observations if observation.log_rate is not None]
    return _rows(measured), Observations(
        value=np.array([observation.log_rate for observation in measured], dtype=float),
        noise=np.array([observation.rate_noise for observation in measured], dtype=float),
        side=np.array(
            [-1 if observation.too_slow else 0 for observation in measured], dtype=np.int64
        ),
        together=_with_drift(_shared_covariance(measured), measured),
    )


def shares(observations: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Returns the candidates with memory results, and their peaks over the limit, or bounds."""
    informative = [
        observation
        for observation in observations
        if observation.ran_out or observation.fitted or observation.log_share is not None
    ]
    side = [1 if s.ran_out else 0 if s.log_share is not None else -1 for s in informative]
    return _rows(informative), Observations(
        value=np.array([observation.log_share or 0.0 for observation in informative], dtype=float),
        noise=np.where(np.array(side) == 0, _PEAK_NOISE, _BOUND_NOISE).astype(float),
        side=np.array(side, dtype=np.int64),
        together=_shared_covariance(informative),
    )


def failures(observations: Iterable[Observation]) -> tuple[np.ndarray, Observations]:
    """Returns the candidates with an outcome, and a latent above 0 if they failed, else below."""
    ended = [
        observation
        for observation in observations
        if observation.failed or observation.fitted or observation.ran_out
    ]
    return _rows(ended), Observations(
        value=np.zeros(len(ended)),
        noise=np.full(len(ended), _FAILURE_NOISE),
        side=np.array([1 if observation.failed else -1 for observation in ended], dtype=np.int64),
    )


def _shared_covariance(observations: list[Observation]) -> Numbers | None:
    """Returns the covariance of errors that trials of another study share; None without any."""
    if not any(observation.study for observation in observations):
        return None
    study = np.array([observation.study for observation in observations])
    deviation = np.array([observation.transfer_std for observation in observations])
    same = (study[:, None] == study[None]) & (study[:, None] > 0)
    return np.outer(deviation, deviation) * same


def _with_drift(together: Numbers | None, observations: list[Observation]) -> Numbers | None:
    """Adds the covariance that the machine's drift gives rates of trials at about the same time."""
    if not any(observation.drift for observation in observations):
        return together
    drift = np.array([observation.drift for observation in observations])
    at = np.array([observation.at / observation.drift_seconds for observation in observations])
    near = np.exp(-np.abs(np.subtract.outer(at, at)))
    shared: Numbers = np.outer(drift, drift) * near
    return shared if together is None else together + shared


def _speed(observation: Observation) -> float:
    return (
        observation.log_rate
        if observation.log_rate is not None and observation.measured
        else -np.inf
    )


def _rows(observations: list[Observation]) -> Numbers:
    return np.array([observation.row for observation in observations], dtype=np.intp)


def observation_of(record: Record, row: int, spec: SweepSpec) -> Observation | None:
    """Converts a record to an observation of the candidate in a row.

    Running out of device memory bounds the memory that was needed. A timeout bounds the
    throughput. Any other ending without a measurement is a failure; so is running out of host
    memory, which no forecast covers.

    Returns:
        None if the outcome says nothing about the plan.
    """
    limit = Objective.of(spec).effective_limit
    match record.outcome:
        case Measured(samples_per_second=rate, memory=memory, beaten=beaten):
            share = memory.peak_bytes / limit(memory.limit_bytes)
            noise = interval_noise(rate.value, rate.high)
            return Observation(
                row=row,
                log_rate=math.log(rate.value),
                rate_noise=max(noise, _BEATEN_NOISE) if beaten else noise,
                log_share=math.log(share) if share > 0 else None,
                fitted=True,
                at=(record.started_at + record.ended_at) / 2,
            )
        case OutOfMemory(where="device", excess=excess, limit_bytes=own):
            share = (1.0 + (excess or 0.0)) * (own / limit(own) if own else 1.0)
            return Observation(row=row, log_share=math.log(share), ran_out=True)
        case TimedOut(deadline_seconds=deadline):
            slack = deadline - spec.objective.max_seconds
            if slack <= 0:
                return Observation(row=row, failed=True)
            bound = math.log(_DEADLINE_STEPS * spec.train.global_batch / slack)
            return Observation(row=row, log_rate=bound, too_slow=True, failed=True)
        case other:
            blames_plan = failure_decision(other, second=True).prune
            return Observation(row=row, failed=True) if blames_plan else None


def interval_noise(value: float, high: float) -> float:
    """Returns the standard deviation of a throughput's logarithm, from its 95 % interval's end."""
    return max(math.log(max(high, value) / value) / _INTERVAL, _MIN_NOISE)


def constraints_of(record: Record, objective: Objective) -> Mapping[str, float]:
    """Returns the constraint violations of a trial as shares; at most 0 if a constraint holds.

    `memory` is by how much the peak, or the memory needed, exceeds `Objective.usable_bytes`;
    just above 0 for a plan that thrashes below that.
    The others are the bounds of `Objective.lower_bounds`; a plan that ran out of memory misses them
    entirely. Empty for outcomes that say nothing about constraints.
    """
    match record.outcome:
        case Measured(memory=memory):
            violation = memory.peak_bytes / objective.usable_bytes(memory.limit_bytes) - 1
            if thrashes(memory):
                violation = max(violation, _MIN_EXCESS)
            violations = {CONSTRAINT: violation}
            for metric, bound in objective.lower_bounds:
                reached = objective.value(record, metric)
                violations[metric] = 1.0 if reached is None else 1 - reached.value / bound
            return violations
        case OutOfMemory(excess=excess, limit_bytes=limit):
            usable = objective.usable_bytes(limit) / limit if limit else 1 - objective.headroom
            violation = (1 + (excess or 0.0)) / usable - 1 + _MIN_EXCESS
            return {CONSTRAINT: violation} | {metric: 1.0 for metric, _ in objective.lower_bounds}
        case _:
            return {}
