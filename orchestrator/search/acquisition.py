"""Acquisition functions: scores of candidates by expected improvement and chance to fit."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation
from orchestrator.search.surrogate import Prediction, Rows

_SAFE = 0.9  # P(fits) preferred for the first trials, where any candidate reaches it
_FIT_EXPONENT = 2.0  # power of P(fits): running out of memory costs more than the trial's seconds
MIN_FIT_PROBABILITY = 0.5  # P(fits) below which a candidate is unlikely to fit
_UNLIKELY_FACTOR = 0.1  # weight of the improvement of an unlikely candidate
_MIN_UNLIKELY_GAIN = 1e-5  # least improvement for which an unlikely candidate is tried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Predicted objective of candidates, and their chances to fit and to reach the lower bound."""

    mean: Numbers
    deviation: Numbers
    fits: Numbers
    reach: Numbers

    @property
    def chance(self) -> Numbers:
        """Probability that a candidate is feasible."""
        return self.fits * self.reach


def first_pick_score(seen: Scores) -> Numbers:
    """Returns the scores while there is no incumbent: fast and safely feasible first.

    Such a trial tells most about memory without running out of it.
    """
    relative_value = np.exp(seen.mean - seen.mean.max()) * seen.reach
    return relative_value * seen.fits**_FIT_EXPONENT + (seen.fits >= _SAFE)


def exceedance(scores: Scores, threshold: float, widening: float) -> float:
    """Returns the sum of the candidates' chances to be feasible and above a threshold.

    `threshold` is a value of the objective, `widening` a factor of the standard deviations.
    """
    standardized = (scores.mean - threshold) / (widening * scores.deviation)
    return float((scores.chance * ndtr(standardized)).sum())


def constrained_improvement(gained: Numbers, fits: Numbers) -> Numbers:
    """Returns constrained expected improvement: the gain weighted by the chance to fit.

    Candidates that are unlikely to fit come last: they are tried once nothing else pays.
    """
    unlikely = fits < MIN_FIT_PROBABILITY
    score: Numbers = gained * fits**_FIT_EXPONENT * np.where(unlikely, _UNLIKELY_FACTOR, 1.0)
    if unlikely.all():
        return score
    return np.where(unlikely & (score < _MIN_UNLIKELY_GAIN), -1.0, score)


def expected_improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """Returns the expected improvement of the logarithm over the incumbent.

    Source:
        Jones et al. 1998, Efficient Global Optimization of Expensive Black-Box Functions.
    """
    standardized = (mean - best) / deviation
    density = np.exp(-0.5 * standardized**2) / np.sqrt(2 * np.pi)
    return deviation * (standardized * ndtr(standardized) + density)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchObjective:
    """The objective and its constraints, in logarithms; arrays have one entry per candidate.

    `of` names the quantity to maximize: "rate" is throughput (per `price` if prices are given),
    "room" is the memory that a peak leaves free. `line` bounds the peak as a share of the limit,
    `lower_bound` the throughput.
    """

    of: Literal["rate", "room"] = "rate"
    line: float = 0.0
    price: Numbers | None = None
    lower_bound: Numbers | None = None

    def answered(self, observation: Observation) -> bool:
        """Returns True if the trial was measured in this study and met all constraints."""
        if not observation.measured or observation.study or observation.log_rate is None:
            return False
        if self.of == "room" and observation.log_share is None:
            return False
        if observation.log_share is not None and observation.log_share > self.line:
            return False
        return self.lower_bound is None or observation.log_rate >= float(
            self.lower_bound[observation.row]
        )

    def expected(self, rate: Prediction, share: Prediction, rows: Rows) -> tuple[Numbers, Numbers]:
        """Returns mean and standard deviation of the objective of the candidates in `rows`."""
        if self.of == "room":
            return -share.mean, share.deviation
        if self.price is None:
            return rate.mean, rate.deviation
        rate_per_price: Numbers = rate.mean - self.price[rows]
        return rate_per_price, rate.deviation

    def beyond(self, rate: Prediction, rows: Rows) -> Numbers | None:
        """Returns the margin over the lower bound in standard deviations; None without a bound."""
        if self.lower_bound is None:
            return None
        return (rate.mean - self.lower_bound[rows]) / rate.deviation
