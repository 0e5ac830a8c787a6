"""Forecasts of many plans at once: time and memory, each with its uncertainty."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from search_spaces.costs.calibration import Z_95, Calibration, probability_below
from search_spaces.costs.host_memory import host_bytes, host_share
from search_spaces.costs.memory import peak_bytes
from search_spaces.costs.plan_features import STACKS, AbstractColumns, Counts, Numbers
from search_spaces.costs.time import TERMS, step_terms
from search_spaces.costs.workload import Workload
from search_spaces.trial import Estimate, PlanForecast

_THREADS = 2  # more would be limited by memory bandwidth
_CHUNK = 1 << 16  # plans at a time: smaller chunks cost more calls, larger ones more memory
_TINY = 1e-30
_SKEW_DEVIATION = 0.1  # with expert ranks, where the one with most tokens decides


def estimate(value: float, deviation: float) -> Estimate:
    """Returns a value with its 95 % interval, from the standard deviation of its logarithm.

    Raises:
        FloatingPointError: If the interval is not finite.
    """
    factor = float(np.exp(Z_95 * deviation))
    high = float(value) * factor
    if not np.isfinite(high):
        raise FloatingPointError(f"{value} with a deviation of {deviation} is not finite")
    return Estimate(value=float(value), low=float(value) / factor, high=high)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasts(AbstractColumns):
    """Forecasts as columns, a row for each plan.

    Deviations are standard deviations of logarithms: the 95 % confidence interval of a value is the
    value times exp(±1.96 deviations).
    """

    step_seconds: Numbers
    step_deviation: Numbers
    samples_per_second: Numbers
    tokens_per_second_per_device: Numbers
    terms: Numbers  # seconds of a step, of shape (plans, TERMS)
    recomputed: Numbers  # share of the computing terms that recomputation takes
    hidden_seconds: Numbers  # of communication behind computation
    peak_bytes: Numbers  # of the fullest rank
    peak_deviation: Numbers
    categories: Numbers  # bytes of the fullest rank at its peak, of shape (plans, CATEGORIES)
    stage: Counts  # of the fullest rank: index into STAGES
    fits: Numbers  # probability that the peak stays below the limit
    host_bytes: Numbers  # offloaded by the ranks of a node
    host_share: Numbers  # of the host memory that a node has for it

    def limited_by(self, row: int) -> str:
        """Returns the largest term of a plan's step."""
        return TERMS[int(np.argmax(self.terms[row]))]


def forecast(work: Workload, calibration: Calibration, limit_bytes: float) -> Forecasts:
    """Forecasts time and memory of plans.

    Args:
        work: The plans.
        calibration: Coefficients and scales.
        limit_bytes: Memory limit per rank.
    """
    # numpy releases the interpreter's lock
    with ThreadPoolExecutor(max_workers=_THREADS) as threads:
        parts = threads.map(lambda part: _forecast(part, calibration, limit_bytes), _chunks(work))
        return Forecasts.joined(list(parts))


def _chunks(work: Workload) -> Iterator[Workload]:
    for start in range(0, max(len(work), 1), _CHUNK):
        yield work.take(slice(start, start + _CHUNK))


def _forecast(work: Workload, calibration: Calibration, limit_bytes: float) -> Forecasts:
    scales = calibration.time_scales
    step = step_terms(work, calibration.time, scales.logarithms)
    terms = step.seconds
    seconds = terms.sum(axis=1)
    peak = peak_bytes(work, calibration.memory)
    categories = calibration.memory_scales.scaled(peak.bytes)
    total = categories.sum(axis=1)
    features, rows = work.executions, work.rows
    factor = memory_deviation_factor(work, calibration)
    skew = np.where(features.experts > 1, _SKEW_DEVIATION, 0.0)
    deviation = np.hypot(calibration.memory_scales.deviation(categories, factor), skew)
    samples = (features.micro_batch * features.accumulation * features.data).astype(float)
    devices = (features.tensor * features.pipeline * features.data).astype(float)
    rate = samples / seconds
    return Forecasts(
        step_seconds=seconds,
        step_deviation=np.hypot(scales.deviation(step.slopes), skew),
        samples_per_second=rate,
        tokens_per_second_per_device=rate * rows.tokens / devices,
        terms=terms,
        recomputed=step.recomputed,
        hidden_seconds=step.hidden,
        peak_bytes=total,
        peak_deviation=deviation,
        categories=categories,
        stage=peak.stage,
        fits=probability_below(np.full(len(work), limit_bytes), total, deviation),
        host_bytes=host_bytes(work),
        host_share=host_share(work),
    )


def plan_forecast(
    work: Workload, row: int, forecasts: Forecasts, calibration_trials: int = 0
) -> PlanForecast:
    """Returns the forecast of the plan in a row.

    Args:
        work: The plans.
        row: Row of the plan.
        forecasts: Forecasts of these plans.
        calibration_trials: Number of the sweep's trials that correct them.

    Raises:
        FloatingPointError: If a value is not finite, since records cannot store it.
    """
    step_deviation, peak_deviation = forecasts.step_deviation[row], forecasts.peak_deviation[row]
    return PlanForecast(
        samples_per_second=estimate(forecasts.samples_per_second[row], step_deviation),
        step_seconds=estimate(forecasts.step_seconds[row], step_deviation),
        peak_bytes=estimate(forecasts.peak_bytes[row], peak_deviation),
        fits=float(forecasts.fits[row]),
        limited_by=forecasts.limited_by(row),
        calibration_trials=calibration_trials,
        filled=float(work.executions.filled[row]),
        host_bytes=float(forecasts.host_bytes[row]),
    )


def memory_deviation_factor(work: Workload, calibration: Calibration) -> Numbers:
    """Returns the factor of each plan's deviation: see `Calibration.own_deviation_factor`."""
    traced = work.executions.stack == STACKS.index("torch")
    own, other = calibration.own_deviation_factor, calibration.memory_scales.deviation_factor
    return np.where(traced, own, other)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchPrior(AbstractColumns):
    """Prior of the search from forecasts: columns with a row for each plan.

    Parts, of shape (plans, coefficients), are the change per standard deviation of each
    coefficient. Coefficients are common to all plans, so a measurement of one plan informs about
    the others.
    """

    log_rate: Numbers  # logarithm of samples per second
    rate_parts: Numbers
    log_share: Numbers  # logarithm of memory over its limit: the device's or the host's
    share_parts: Numbers
    step_seconds: Numbers


def search_prior(work: Workload, calibration: Calibration, limit_bytes: float) -> SearchPrior:
    """Calculates the search prior of plans.

    Args:
        work: The plans.
        calibration: Coefficients and scales.
        limit_bytes: Memory limit per rank.
    """
    scales = calibration.time_scales
    step = step_terms(work, calibration.time, scales.logarithms)
    peak_terms = peak_bytes(work, calibration.memory).bytes
    categories = calibration.memory_scales.scaled(peak_terms)
    features = work.executions
    samples = (features.micro_batch * features.accumulation * features.data).astype(float)
    seconds = step.seconds.sum(axis=1)
    peak = categories.sum(axis=1)
    factor = memory_deviation_factor(work, calibration)
    return SearchPrior(
        log_rate=np.log(samples / np.maximum(seconds, _TINY)),
        rate_parts=scales.parts(step.slopes),
        log_share=np.log(np.maximum(np.maximum(peak, _TINY) / limit_bytes, host_share(work))),
        share_parts=calibration.memory_scales.parts(categories, factor),
        step_seconds=seconds,
    )
