"""What a trial of a candidate is worth, by what is believed of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation
from orchestrator.search.surrogate import Prediction, Rows

_SURE = 0.9  # P(fits) that the first trials have, where there are such candidates
_CAUTION = 2.0  # power of P(fits): an out-of-memory trial costs more than its seconds
LEAST_FITS = 0.5  # what is less probable counts as unlikely
_LAST = 0.1  # of what an unlikely one is worth
_NOTHING = 1e-5  # what will not fit is not tried for less, while there is anything else


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scores:
    """Of candidates: what is wanted of them, and the chances that they fit and reach the least."""

    mean: Numbers
    deviation: Numbers
    fits: Numbers
    reach: Numbers

    @property
    def chance(self) -> Numbers:
        """That a candidate is an answer."""
        return self.fits * self.reach


def first_pick_score(seen: Scores) -> Numbers:
    """What candidates are compared by while there is nothing to compare with.

    What is surely feasible and fast: it shows most of what memory is left, without running out.
    """
    hope = np.exp(seen.mean - seen.mean.max()) * seen.reach
    promise: Numbers = hope * seen.fits**_CAUTION + (seen.fits >= _SURE)
    return promise


def constrained_improvement(gained: Numbers, fits: Numbers) -> Numbers:
    """What gains are worth by the chance to fit: what will not is tried when nothing else pays."""
    unlikely = fits < LEAST_FITS
    worth: Numbers = gained * fits**_CAUTION * np.where(unlikely, _LAST, 1.0)
    if unlikely.all():
        return worth
    return np.where(unlikely & (worth < _NOTHING), -1.0, worth)


def expected_improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """What is expected to be gained of the logarithm over the best (Jones et al. 1998)."""
    place = (mean - best) / deviation
    density = np.exp(-0.5 * place**2) / np.sqrt(2 * np.pi)
    found: Numbers = deviation * (place * ndtr(place) + density)
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchObjective:
    """All as logarithms, of candidates where it is an array of shape (candidates,).

    `of` says what is to be large: throughput, over `price` where that is given, or what a peak
    leaves of the limit, for which peaks are compared. `line` is the largest share of the limit
    that may be held, `lower_bound` the throughput that a candidate must reach.
    """

    of: Literal["rate", "room"] = "rate"
    line: float = 0.0
    price: Numbers | None = None
    lower_bound: Numbers | None = None

    def answered(self, sight: Observation) -> bool:
        """Whether a trial is an answer: measured here, below the line, and as fast as asked."""
        if not sight.measured or sight.study or sight.log_rate is None:
            return False
        if self.of == "room" and sight.log_share is None:
            return False
        if sight.log_share is not None and sight.log_share > self.line:
            return False
        return self.lower_bound is None or sight.log_rate >= float(self.lower_bound[sight.row])

    def expected(self, rate: Prediction, share: Prediction, rows: Rows) -> tuple[Numbers, Numbers]:
        """Mean and deviation of what candidates reach."""
        if self.of == "room":
            return -share.mean, share.deviation
        if self.price is None:
            return rate.mean, rate.deviation
        priced: Numbers = rate.mean - self.price[rows]
        return priced, rate.deviation

    def beyond(self, rate: Prediction, rows: Rows) -> Numbers | None:
        """By how many deviations candidates are expected to reach what they must; None: nothing."""
        if self.lower_bound is None:
            return None
        found: Numbers = (rate.mean - self.lower_bound[rows]) / rate.deviation
        return found
