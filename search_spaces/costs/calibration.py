"""Sums of terms whose scales are uncertain: seconds by term, bytes by category.

A measured sum y of terms T is modelled as

    log y = z_0 + log(sum_k exp(z_k) T_k) + e,   z ~ N(mean, covariance),   e ~ N(0, noise^2)

so that a few measurements teach more than a factor: a plan that mostly talks corrects
communication, one that mostly computes corrects computing. Linearised, the posterior is closed
(Bishop 2006, Pattern Recognition and Machine Learning, section 3.3).
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
from search_spaces.costs.workload import Work

SURE = 1.96  # standard deviations on each side of an interval of 95 %
_STEPS = 8  # of Gauss and Newton; three are enough where terms are right within a factor of two
_LEAST = 1e-30
# Student's distribution with three degrees of freedom, of which 95 % lie within `SURE` deviations
_FREEDOM = 3.0
_UNIT = SURE / float(stdtrit(_FREEDOM, 0.975))
HOST_WEIGHT = 0.14  # of a measurement on a CPU: noise of 8 % where that of a GPU is 3 %
PRIOR = "prior.json"  # fitted by `python -m benchmarks.published.fit`


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """What is believed of the scales: the common one first, then one for each term.

    `covariance` and `noise` say what a measurement teaches. How far forecasts are really off is
    another matter, since no model is true: their deviation is `sureness` times what the covariance
    says, and `misfit` beside, which no measurement of other plans takes away.
    """

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float
    sureness: float = 1.0
    misfit: float = 0.0

    @classmethod
    def before(cls, common: float, spread: tuple[float, ...], noise: float) -> Self:
        """Scales of which nothing has been measured."""
        deviations = np.array([common, *spread])
        return cls(
            mean=(0.0,) * len(deviations),
            covariance=tuple(map(tuple, np.diag(deviations**2).tolist())),
            noise=noise,
        )

    def learned(self, terms: Numbers, measured: Numbers, weight: Numbers | None = None) -> Self:
        """What is believed after measurements.

        Args:
            terms: Of shape (measurements, terms).
            measured: Their measured sums; what is not positive says nothing.
            weight: How much each counts, 1 for a whole one.
        """
        told = np.isfinite(measured) & (measured > 0) & (terms.sum(axis=1) > 0)
        if not told.any():
            return self
        terms, target = terms[told], np.log(measured[told])
        noise = self.noise**2 / (np.ones(len(target)) if weight is None else weight[told])
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
        """The terms as they are now expected to be."""
        mean = np.array(self.mean)
        scaled: Numbers = (terms.T * np.exp(mean[0] + mean[1:, None])).T
        return scaled

    def deviation(self, terms: Numbers, sureness: Numbers | float | None = None) -> Numbers:
        """Standard deviation of the logarithm of each sum of (unscaled) terms.

        Args:
            terms: Of shape (sums, terms).
            sureness: In place of that of all sums.
        """
        slope = _linear(terms, np.array(self.mean))[1].T
        variance = np.maximum((np.array(self.covariance) @ slope * slope).sum(axis=0), 0.0)
        factor = self.sureness if sureness is None else sureness
        whole: Numbers = np.sqrt(factor**2 * variance + self.misfit**2)
        return whole

    def parts(self, terms: Numbers, sureness: Numbers | float | None = None) -> Numbers:
        """By how much a standard deviation of each scale moves the logarithm of each sum.

        Args:
            terms: Of shape (sums, terms).
            sureness: In place of that of all sums.

        Returns:
            Of shape (sums, 1 + terms); its rows' squares add up to the variance of each sum
            that the scales alone make.
        """
        root = np.linalg.cholesky(np.array(self.covariance) + _LEAST * np.eye(len(self.mean)))
        factor = np.asarray(self.sureness if sureness is None else sureness, dtype=float)
        slopes = _linear(terms, np.array(self.mean))[1]
        parts: Numbers = (slopes @ root) * (factor[:, None] if factor.ndim else factor)
        return parts

    def doubts(self, terms: Numbers, sureness: float | None = None) -> tuple[Numbers, float]:
        """What the deviation of one sum is made of, as shares of its square.

        Returns:
            The shares of the common scale and of each term's; and that of the misfit.
        """
        slope = _linear(terms[None], np.array(self.mean))[1][0]
        factor = self.sureness if sureness is None else sureness
        parts = factor**2 * slope * (np.array(self.covariance) @ slope)
        whole = max(float(parts.sum()) + self.misfit**2, _LEAST)
        return parts / whole, self.misfit**2 / whole


def probability_below(limit: Numbers, expected: Numbers, deviation: Numbers) -> Numbers:
    """That a quantity around what is expected does not exceed a limit.

    Its logarithm has the tails of Student's distribution with three degrees of freedom, which is
    nearest to what forecasts of published peaks are off by (2.5 fit best, see docs/decisions, 14),
    and the interval of 95 % that `SURE` deviations make.
    """
    excess = np.log(np.maximum(limit, _LEAST)) - np.log(np.maximum(expected, _LEAST))
    place = excess / np.maximum(deviation, 1e-9) / (_UNIT * _FREEDOM**0.5)
    below: Numbers = 0.5 + (place / (1 + place**2) + np.arctan(place)) / np.pi
    return below


def limit_above(expected: Numbers, deviation: Numbers, probability: float) -> Numbers:
    """The limit that a quantity does not exceed with a probability: the other way round."""
    limit: Numbers = expected * np.exp(_UNIT * float(stdtrit(_FREEDOM, probability)) * deviation)
    return limit


def _linear(terms: Numbers, scales: Numbers) -> tuple[Numbers, Numbers]:
    """Logarithms of the sums, and their slopes by each scale, the common one first."""
    scaled = terms.T * np.exp(scales[1:, None])  # terms in rows: long columns add up fast
    total = np.maximum(scaled.sum(axis=0), _LEAST)
    return scales[0] + np.log(total), np.vstack([np.ones(len(terms)), scaled / total]).T


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Coefficients as fitted, and the scales of each term, which measurements correct.

    `provenance` says what the coefficients were fitted to.
    """

    time: TimeCoefficients
    time_scales: Scales
    memory: MemoryCoefficients
    memory_scales: Scales
    own_sureness: float  # of memory, where Plimsoll's own loop allocates what was traced
    provenance: str

    def learned(
        self, work: Work, step_seconds: Numbers, held_bytes: Numbers, weight: Numbers | None = None
    ) -> Self:
        """The belief after measurements of some plans.

        Args:
            work: The plans that were measured.
            step_seconds: Seconds of an optimizer step; nan where it was not measured.
            held_bytes: Bytes that the fullest rank held; nan where it was not measured.
            weight: How much each measurement counts, 1 for a whole one.
        """
        if not len(work):
            return self
        # cores that share caches and memory measure less alike than devices of their own
        count = np.ones(len(work)) if weight is None else weight
        weight = np.where(work.rows.on_cpu > 0, HOST_WEIGHT * count, count)
        terms = step_terms(work, self.time).seconds
        held = peak_bytes(work, self.memory).bytes
        return replace(
            self,
            time_scales=self.time_scales.learned(terms, step_seconds, weight),
            memory_scales=self.memory_scales.learned(held, held_bytes, weight),
        )


_BELIEFS: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def shipped_calibration() -> Calibration:
    """What Plimsoll believes before it has measured anything."""
    return calibration_from_json((files(__package__) / PRIOR).read_text("utf-8"))


def calibration_from_json(text: str) -> Calibration:
    """The belief that `calibration_to_json` wrote."""
    return _BELIEFS.validate_json(text)


def calibration_to_json(belief: Calibration) -> str:
    """As JSON, which people can read."""
    return _BELIEFS.dump_json(belief, indent=1).decode() + "\n"
