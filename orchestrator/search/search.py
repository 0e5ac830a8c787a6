"""The next candidate: the one whose expected gain per expected cost is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from orchestrator.search.evidence import Sight, rates, shares
from orchestrator.search.gaussian import Numbers
from orchestrator.search.surrogate import Belief, Surrogate

# What is believed to be common to all candidates beside the forecast, as a deviation of logarithms:
# of throughput (anything, without a forecast), and of memory
_COMMON_RATE = 1.0
_COMMON_SHARE = 0.3
_SURE = 0.9  # P(fits) that the first trials have, where there are such candidates
_CAUTION = 2.0  # power of P(fits): an out-of-memory trial costs more than its seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """All candidates, as a search sees them.

    `log_rate` and `log_share` are forecasts, None where there are none; `seconds` is what a trial
    of each is expected to take.
    """

    features: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    seconds: Numbers | None = None
    headroom: float = 0.0

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to try next, and what is expected of it.

    `gain` is the expected throughput over the best known, less 1, and `best` that one's candidate;
    None while none is known. `worth` is what candidates were compared by.
    """

    row: int
    fits: float
    worth: float
    gain: float | None = None
    best: int | None = None


class Search:
    """Chooses among fixed candidates by what was seen of them."""

    def __init__(self, options: Options, seed: int = 0) -> None:
        """Believes the forecasts."""
        self._options = options
        self._rate = Surrogate(options.features, options.log_rate, _COMMON_RATE)
        self._share = Surrogate(options.features, options.log_share, _COMMON_SHARE)
        self._random = np.random.default_rng(seed)

    def next(
        self, sights: Sequence[Sight], free: np.ndarray, pending: Sequence[int] = ()
    ) -> Choice:
        """The best candidate to try.

        Args:
            sights: What trials have shown.
            free: Which candidates may be tried, of shape (candidates,); at least one.
            pending: Candidates of trials under way: taken to end as expected.
        """
        rate = self._rate.belief(*rates(sights))
        if pending:
            dreamt = [
                Sight(row=row, log_rate=float(rate.mean[row]), rate_noise=1e-3) for row in pending
            ]
            rate = self._rate.belief(*rates([*sights, *dreamt]))
        share = self._share.belief(*shares(sights))
        line = float(np.log(1 - self._options.headroom))
        fits = ndtr((line - share.mean) / share.deviation)
        best = self._best(sights, line)
        worth = self._worth(rate, fits, None if best is None else best.log_rate)
        score = np.where(free, worth, -np.inf)
        top = np.flatnonzero(score >= score.max() - 1e-12 * abs(score.max()))
        row = int(self._random.choice(top))
        return Choice(
            row=row,
            fits=float(fits[row]),
            worth=float(worth[row]),
            gain=None if best is None else float(np.expm1(rate.mean[row] - _rate_of(best))),
            best=None if best is None else best.row,
        )

    def _worth(self, rate: Belief, fits: Numbers, best: float | None) -> Numbers:
        if best is None:
            # nothing to compare with: what is surely feasible and fast, or most likely to be
            promise = np.exp(rate.mean - rate.mean.max())
            worth: Numbers = promise * fits**_CAUTION + (fits >= _SURE)
            return worth
        gained = _expected_improvement(rate.mean, rate.deviation, best) * fits**_CAUTION
        return gained if self._options.seconds is None else gained / self._options.seconds

    def _best(self, sights: Sequence[Sight], line: float) -> Sight | None:
        found = [
            sight
            for sight in sights
            if sight.log_rate is not None and (sight.log_share is None or sight.log_share <= line)
        ]
        return max(found, key=_rate_of, default=None)


def _rate_of(sight: Sight) -> float:
    return -np.inf if sight.log_rate is None else sight.log_rate


def _expected_improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """Of the logarithm over the best (Jones et al. 1998)."""
    place = (mean - best) / deviation
    density = np.exp(-0.5 * place**2) / np.sqrt(2 * np.pi)
    found: Numbers = deviation * (place * ndtr(place) + density)
    return found
