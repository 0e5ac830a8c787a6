"""Calibration of the cost model: coefficients, and the uncertain scales of their terms.

A measured sum y of terms T (seconds by term, or bytes by category) is modelled as

    log y = z_0 + log(sum_k exp(z_k) T_k) + e,   z ~ N(mean, covariance),   e ~ N(0, noise^2)

so that a few measurements correct more than a common factor: a plan that mostly communicates
corrects communication, one that mostly computes corrects computation. The linearised model has a
closed-form posterior (Bishop 2006, Pattern Recognition and Machine Learning, section 3.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Self

import numpy as np
from pydantic import TypeAdapter
from scipy.special import stdtrit

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.memory import MemoryCoefficients, peak_bytes
from search_spaces.costs.plan_features import Numbers
from search_spaces.costs.time import step_terms
from search_spaces.costs.workload import Workload
from search_spaces.hardware.device import Device

Z_95 = 1.96  # standard deviations on each side of a 95 % confidence interval
_STEPS = 8  # of Gauss-Newton; three suffice if terms are right within a factor of two
_TINY = 1e-30
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
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    deviation_factor: float = 1.0
    misfit: float = 0.0

    @classmethod
    def before(cls, common: float, spread: tuple[float, ...], noise: float) -> Self:
        """Returns the prior, before any measurement.

        Args:
            common: Deviation of the common scale.
            spread: Deviation of each term's scale.
            noise: Deviation of a measurement.
        """
        deviations = np.array([common, *spread])
        return cls(
            mean=(0.0,) * len(deviations),
            covariance=tuple(map(tuple, np.diag(deviations**2).tolist())),
            noise=noise,
        )

    def learned(self, terms: Numbers, measured: Numbers, weight: Numbers | None = None) -> Self:
        """Returns the posterior after measurements.

        Args:
            terms: Forecast terms, of shape (measurements, terms).
            measured: Measured sums; those that are not positive are ignored.
            weight: Weight of each measurement; 1 for a full one.
        """
        valid = np.isfinite(measured) & (measured > 0) & (terms.sum(axis=1) > 0)
        if not valid.any():
            return self
        terms, target = terms[valid], np.log(measured[valid])
        noise = self.noise**2 / (np.ones(len(target)) if weight is None else weight[valid])
        prior, start = np.array(self.covariance), np.array(self.mean)
        guess = start
        for _ in range(_STEPS):
            expected, slope = _linear(terms, guess)
            gain = prior @ slope.T @ np.linalg.inv(slope @ prior @ slope.T + np.diag(noise))
            guess = start + gain @ (target - expected + slope @ (guess - start))
        _, slope = _linear(terms, guess)
        gain = prior @ slope.T @ np.linalg.inv(slope @ prior @ slope.T + np.diag(noise))
        covariance = prior - gain @ slope @ prior
        return replace(
            self,
            mean=tuple(guess.tolist()),
            covariance=tuple(map(tuple, ((covariance + covariance.T) / 2).tolist())),
        )

    def scaled(self, terms: Numbers) -> Numbers:
        """Returns the terms times their mean scales."""
        mean = np.array(self.mean)
        scaled: Numbers = (terms.T * np.exp(mean[0] + mean[1:, None])).T
        return scaled

    def deviation(self, terms: Numbers, factor: Numbers | float | None = None) -> Numbers:
        """Returns the standard deviation of the logarithm of each sum.

        Args:
            terms: Unscaled terms, of shape (sums, terms).
            factor: Replaces `self.deviation_factor`.
        """
        slope = _linear(terms, np.array(self.mean))[1].T
        variance = np.maximum((np.array(self.covariance) @ slope * slope).sum(axis=0), 0.0)
        factor = self.deviation_factor if factor is None else factor
        deviation: Numbers = np.sqrt(factor**2 * variance + self.misfit**2)
        return deviation

    def parts(self, terms: Numbers, factor: Numbers | float | None = None) -> Numbers:
        """Returns the change of each sum's logarithm per standard deviation of independent scales.

        Args:
            terms: Unscaled terms, of shape (sums, terms).
            factor: Replaces `self.deviation_factor`.

        Returns:
            Array of shape (sums, 1 + terms); the squares of a row add up to the variance of the
            sum, without the misfit.
        """
        root = np.linalg.cholesky(np.array(self.covariance) + _TINY * np.eye(len(self.mean)))
        factor = np.asarray(self.deviation_factor if factor is None else factor, dtype=float)
        slopes = _linear(terms, np.array(self.mean))[1]
        parts: Numbers = (slopes @ root) * (factor[:, None] if factor.ndim else factor)
        return parts


def probability_below(limit: Numbers, expected: Numbers, deviation: Numbers) -> Numbers:
    """Returns the probability that a quantity does not exceed a limit.

    Its logarithm has Student's t distribution with three degrees of freedom, close to the errors of
    forecasts of published peaks (2.5 fit best, see docs/decisions, 14), scaled such that `Z_95`
    deviations give the 95 % confidence interval.

    Args:
        limit: Limits.
        expected: Medians of the quantity.
        deviation: Standard deviations of its logarithm.
    """
    excess = np.log(np.maximum(limit, _TINY)) - np.log(np.maximum(expected, _TINY))
    place = excess / np.maximum(deviation, 1e-9) / (_UNIT * _FREEDOM**0.5)
    below: Numbers = 0.5 + (place / (1 + place**2) + np.arctan(place)) / np.pi
    return below


def _linear(terms: Numbers, scales: Numbers) -> tuple[Numbers, Numbers]:
    # the logarithms of the sums and their gradients; terms in rows are faster to sum
    scaled = terms.T * np.exp(scales[1:, None])
    total = np.maximum(scaled.sum(axis=0), _TINY)
    return scales[0] + np.log(total), np.vstack([np.ones(len(terms)), scaled / total]).T


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

    def learned(
        self,
        work: Workload,
        step_seconds: Numbers,
        held_bytes: Numbers,
        weight: Numbers | None = None,
    ) -> Self:
        """Returns the calibration after measurements of some plans.

        Args:
            work: The measured plans.
            step_seconds: Seconds of an optimizer step; nan if it was not measured.
            held_bytes: Bytes of the fullest rank; nan if they were not measured.
            weight: Weight of each measurement; 1 for a full one.
        """
        if not len(work):
            return self
        # cores share caches and memory, so their measurements vary more than those of GPUs
        base_weight = np.ones(len(work)) if weight is None else weight
        weight = np.where(work.rows.on_cpu > 0, HOST_WEIGHT * base_weight, base_weight)
        terms = step_terms(work, self.time).seconds
        categories = peak_bytes(work, self.memory).bytes
        return replace(
            self,
            time_scales=self.time_scales.learned(terms, step_seconds, weight),
            memory_scales=self.memory_scales.learned(categories, held_bytes, weight),
        )


_ADAPTER: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def shipped_calibration() -> Calibration:
    """Returns the calibration that ships with Plimsoll, before any measurement."""
    return calibration_from_json((files(__package__) / PRIOR).read_text("utf-8"))


def calibration_from_json(text: str) -> Calibration:
    """Reads a calibration that `calibration_to_json` wrote."""
    return _ADAPTER.validate_json(text)


def calibration_to_json(calibration: Calibration) -> str:
    """Returns a calibration as indented JSON."""
    return _ADAPTER.dump_json(calibration, indent=1).decode() + "\n"
