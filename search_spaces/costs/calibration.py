"""Calibration of the cost model: coefficients, and the uncertain scales of their terms.

A measured sum y (seconds of a step, or bytes of a peak) is modelled as

    log y = log f(exp(z_0 + z_1), ..., exp(z_0 + z_n)) + e,
    z ~ N(mean, covariance),   e ~ N(0, noise^2)

where f is the forecast with its terms scaled. A scale that has nothing to do with the others, such
as that of the host's launches, goes without the common one, z_0. So a few measurements correct more
than a common factor: a plan that mostly communicates corrects communication, one that mostly
computes corrects computation, and one whose operators hide behind the host's launches corrects
launches alone. f is homogeneous of degree one, so its slopes, the derivatives by the logarithms,
add up to f; where f is a sum of terms, they are the terms. The linearised model has a closed-form
posterior (Bishop 2006, Pattern Recognition and Machine Learning, section 3.3).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Self

import numpy as np
from pydantic import TypeAdapter
from scipy.special import stdtrit

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.memory import MemoryCoefficients, peak_bytes
from search_spaces.costs.micro_batch import LAUNCH_SCALES
from search_spaces.costs.plan_features import Numbers
from search_spaces.costs.time import SCALES, step_terms
from search_spaces.costs.workload import Workload
from search_spaces.hardware.device import Device

Z_95 = 1.96  # standard deviations on each side of a 95 % confidence interval
Slopes = Callable[[Numbers], Numbers]
"""Returns the slopes of each sum, of shape (sums, terms), at the logarithms of terms' scales."""
_STEPS = 8  # of Gauss-Newton; three suffice if terms are right within a factor of two
_STARTS = (0.0, 0.7, 1.4)  # logarithms: hidden terms as forecast, twice and four times as large
_TINY = 1e-30
_LAUNCHES = [SCALES.index(name) for name in LAUNCH_SCALES]
# Student's t distribution with three degrees of freedom, scaled to 95 % within `Z_95` deviations
_FREEDOM = 3.0
_UNIT = Z_95 / float(stdtrit(_FREEDOM, 0.975))
HOST_WEIGHT = 0.14  # of a measurement on a CPU, with 8 % noise instead of a GPU's 3 %
PRIOR = "prior.json"  # fitted by `python -m benchmarks.published.fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Distribution of the logarithms of scales: the common one first, then one for each term.

    Attributes:
        mean: Means.
        covariance: Covariance, which determines with `noise` how much a measurement corrects.
        noise: Standard deviation of a measurement's logarithm.
        deviation_factor: Factor from the covariance's deviation to the real one of forecasts, since
            the model is only approximate.
        misfit: Additional deviation of forecasts, which measurements of other plans cannot reduce.
        apart: Indices of the terms that the common scale is not common to; they may be hidden
            behind others, where nothing tells how large they are.
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    deviation_factor: float = 1.0
    misfit: float = 0.0
    apart: tuple[int, ...] = ()

    @classmethod
    def before(
        cls, common: float, spread: tuple[float, ...], noise: float, apart: tuple[int, ...] = ()
    ) -> Self:
        """Returns the prior, before any measurement.

        Args:
            common: Deviation of the common scale.
            spread: Deviation of each term's scale.
            noise: Deviation of a measurement.
            apart: Indices of the terms without the common scale.
        """
        deviations = np.array([common, *spread])
        return cls(
            mean=(0.0,) * len(deviations),
            covariance=tuple(map(tuple, np.diag(deviations**2).tolist())),
            noise=noise,
            apart=apart,
        )

    def learned(self, slopes: Slopes, measured: Numbers, weight: Numbers | None = None) -> Self:
        """Returns the posterior after measurements.

        Args:
            slopes: Forecast of the measured sums.
            measured: Measured sums; those that are not positive are ignored.
            weight: Weight of each measurement; 1 for a full one.
        """
        valid = np.isfinite(measured) & (measured > 0) & (slopes(self.logarithms).sum(axis=1) > 0)
        if not valid.any():
            return self
        problem = _Problem(
            slopes=lambda logarithms: slopes(logarithms)[valid],
            target=np.log(measured[valid]),
            noise=self.noise**2 / (np.ones(len(measured)) if weight is None else weight)[valid],
            mean=np.array(self.mean),
            covariance=np.array(self.covariance),
            loading=self.loading,
        )
        # a term behind others has no slope, so the search begins with larger ones too
        larger = np.isin(np.arange(len(self.mean)) - 1, self.apart)
        starts = _STARTS if self.apart else (0.0,)
        guesses = [problem.solved(problem.mean + factor * larger) for factor in starts]
        guess = min(guesses, key=problem.misfit)
        covariance = problem.covariance_at(guess)
        return replace(
            self,
            mean=tuple(guess.tolist()),
            covariance=tuple(map(tuple, ((covariance + covariance.T) / 2).tolist())),
        )

    @property
    def loading(self) -> Numbers:
        """Matrix from `mean` to the logarithm of each term's whole scale."""
        terms = len(self.mean) - 1
        common = ~np.isin(np.arange(terms), self.apart)
        return np.hstack([common[:, None], np.eye(terms)])

    @property
    def logarithms(self) -> Numbers:
        """Median of the logarithm of each term's whole scale, the common one included."""
        return self.loading @ np.array(self.mean)

    def scaled(self, terms: Numbers) -> Numbers:
        """Returns terms of sums times their median scales."""
        return terms * np.exp(self.logarithms)

    def deviation(self, slopes: Numbers, factor: Numbers | float | None = None) -> Numbers:
        """Returns the standard deviation of the logarithm of each sum.

        Args:
            slopes: Slopes at the median scales, of shape (sums, terms).
            factor: Replaces `self.deviation_factor`.
        """
        slope = (_shares(slopes) @ self.loading).T
        variance = np.maximum((np.array(self.covariance) @ slope * slope).sum(axis=0), 0.0)
        factor = self.deviation_factor if factor is None else factor
        return np.sqrt(factor**2 * variance + self.misfit**2)

    def parts(self, slopes: Numbers, factor: Numbers | float | None = None) -> Numbers:
        """Returns the change of each sum's logarithm per standard deviation of independent scales.

        Args:
            slopes: Slopes at the median scales, of shape (sums, terms).
            factor: Replaces `self.deviation_factor`.

        Returns:
            Array of shape (sums, 1 + terms); the squares of a row add up to the variance of the
            sum, without the misfit.
        """
        root = np.linalg.cholesky(np.array(self.covariance) + _TINY * np.eye(len(self.mean)))
        factor = np.asarray(self.deviation_factor if factor is None else factor, dtype=float)
        gradients = _shares(slopes) @ self.loading
        return (gradients @ root) * (factor[:, None] if factor.ndim else factor)


def probability_below(limit: Numbers, expected: Numbers, deviation: Numbers) -> Numbers:
    """Returns the probability that a quantity does not exceed a limit.

    Its logarithm has Student's t distribution with three degrees of freedom, close to the errors of
    forecasts of published peaks (2.5 fit best, see decision 14), scaled such that `Z_95`
    deviations give the 95 % confidence interval.

    Args:
        limit: Limits.
        expected: Medians of the quantity.
        deviation: Standard deviations of its logarithm.
    """
    excess = np.log(np.maximum(limit, _TINY)) - np.log(np.maximum(expected, _TINY))
    place = excess / np.maximum(deviation, 1e-9) / (_UNIT * _FREEDOM**0.5)
    return 0.5 + (place / (1 + place**2) + np.arctan(place)) / np.pi


def _shares(slopes: Numbers) -> Numbers:
    """Returns the derivatives of the logarithms of the sums by those of the terms' scales."""
    return (slopes.T / np.maximum(slopes.sum(axis=1), _TINY)).T


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Problem:
    """Measured sums, and the distribution of scales before them."""

    slopes: Slopes
    target: Numbers  # logarithms of the measured sums
    noise: Numbers  # variance of each
    mean: Numbers
    covariance: Numbers
    loading: Numbers

    def solved(self, guess: Numbers) -> Numbers:
        """Returns the most probable scales near a guess, by Gauss-Newton."""
        for _ in range(_STEPS):
            expected, slope = self._linear(guess)
            away = self.target - expected + slope @ (guess - self.mean)
            guess = self.mean + self._gain(slope) @ away
        return guess

    def covariance_at(self, guess: Numbers) -> Numbers:
        """Returns the covariance of the scales after the measurements."""
        _, slope = self._linear(guess)
        return self.covariance - self._gain(slope) @ slope @ self.covariance

    def misfit(self, guess: Numbers) -> float:
        """Returns the negative logarithm of the posterior density, up to a constant."""
        expected, _ = self._linear(guess)
        moved = guess - self.mean
        prior = moved @ np.linalg.solve(self.covariance + _TINY * np.eye(len(moved)), moved)
        return float(prior + ((self.target - expected) ** 2 / self.noise).sum())

    def _linear(self, guess: Numbers) -> tuple[Numbers, Numbers]:
        slopes = self.slopes(self.loading @ guess)
        expected = np.log(np.maximum(slopes.sum(axis=1), _TINY))
        return expected, _shares(slopes) @ self.loading

    def _gain(self, slope: Numbers) -> Numbers:
        spread = slope @ self.covariance @ slope.T + np.diag(self.noise)
        return self.covariance @ slope.T @ np.linalg.inv(spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Fitted coefficients, and the scales of their terms, which measurements correct."""

    time: TimeCoefficients
    time_scales: Scales
    memory: MemoryCoefficients
    memory_scales: Scales
    own_deviation_factor: float  # of memory in Plimsoll's own loop, whose allocations are traced
    provenance: str  # measurements that the coefficients were fitted to

    def for_device(self, device: Device) -> Self:
        """Returns the calibration before any measurement on a device.

        Speeds of an estimated device are forecast within a factor of two or more (95 %): peaks of
        its data sheet and shares that programs reach of them are both unknown.
        """
        if not device.estimated:
            return self
        covariance = np.array(self.time_scales.covariance)
        covariance[0, 0] += (np.log(2) / Z_95 / self.time_scales.deviation_factor) ** 2
        scales = replace(self.time_scales, covariance=tuple(map(tuple, covariance.tolist())))
        return replace(self, time_scales=scales)

    def learned(self, work: Workload, step_seconds: Numbers, held_bytes: Numbers) -> Self:
        """Returns the calibration after measurements of some plans.

        Args:
            work: The measured plans.
            step_seconds: Seconds of an optimizer step; nan if it was not measured.
            held_bytes: Bytes of the fullest rank; nan if they were not measured.
        """
        if not len(work):
            return self
        # cores share caches and memory, so their measurements vary more than those of GPUs
        weight = np.where(work.rows.on_cpu > 0, HOST_WEIGHT, 1.0)
        categories = peak_bytes(work, self.memory).bytes
        return replace(
            self,
            time_scales=learned_time(self.time_scales, work, self.time, step_seconds, weight),
            memory_scales=self.memory_scales.learned(scaled_sum(categories), held_bytes, weight),
        )


def scaled_sum(terms: Numbers) -> Slopes:
    """Returns the slopes of sums of terms, of shape (sums, terms): the scaled terms."""
    return lambda logarithms: terms * np.exp(logarithms)


def learned_time(
    scales: Scales,
    work: Workload,
    coefficients: TimeCoefficients,
    step_seconds: Numbers,
    weight: Numbers | None = None,
) -> Scales:
    """Returns the scales of time after the seconds of some plans' steps."""
    return scales.learned(
        lambda logarithms: _attributed(work, step_terms(work, coefficients, logarithms).slopes),
        step_seconds,
        weight,
    )


def _attributed(work: Workload, slopes: Numbers) -> Numbers:
    """Attributes a step that the host limits on a GPU to its launches alone.

    What the device does meanwhile hides behind them, also where it takes longer for a while.
    """
    launching = slopes[:, _LAUNCHES]
    total, launches = slopes.sum(axis=1), launching.sum(axis=1)
    limited = (launches > total / 2) & (work.rows.on_cpu == 0)
    alone = np.zeros_like(slopes)
    alone[:, _LAUNCHES] = (launching.T * total / np.maximum(launches, _TINY)).T
    return np.where(limited[:, None], alone, slopes)


CALIBRATIONS: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def shipped_calibration() -> Calibration:
    """Returns the calibration that ships with Plimsoll, before any measurement."""
    return CALIBRATIONS.validate_json((files(__package__) / PRIOR).read_text("utf-8"))
