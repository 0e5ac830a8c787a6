"""The next candidate: the one whose expected gain per expected cost is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from orchestrator.search.evidence import Sight, rates, shares
from orchestrator.search.gaussian import Numbers
from orchestrator.search.surrogate import Belief, Rows, Surrogate

# What is believed to be common to all candidates beside the forecast, as a deviation of logarithms:
# of throughput (anything, without a forecast), and of memory
_COMMON_RATE = 1.0
_COMMON_SHARE = 0.3
_SURE = 0.9  # P(fits) that the first trials have, where there are such candidates
_CAUTION = 2.0  # power of P(fits): an out-of-memory trial costs more than its seconds
_DREAMT = 1e-3  # how exactly a trial under way is taken to end as expected
_SOME = 1500  # candidates of each sort that are looked at where there are very many
_TOO_LARGE = 10.0  # what a peak over the limit costs a forecast, as logarithms
Flags = NDArray[np.bool_]


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

    def next(self, sights: Sequence[Sight], free: Flags, pending: Sequence[int] = ()) -> Choice:
        """The best candidate to try.

        Args:
            sights: What trials have shown.
            free: Which candidates may be tried, of shape (candidates,); at least one.
            pending: Candidates of trials under way: taken to end as expected.
        """
        line = float(np.log(1 - self._options.headroom))
        best = self._best(sights, line)
        rows = self._considered(free, best)
        rate = self._rate.belief(*rates(sights), rows)
        if pending:
            wait = np.array(pending, dtype=np.intp)
            means = self._rate.belief(*rates(sights), wait, choose=False).mean.tolist()
            dreamt = [
                Sight(row=row, log_rate=mean, rate_noise=_DREAMT)
                for row, mean in zip(pending, means, strict=True)
            ]
            rate = self._rate.belief(*rates([*sights, *dreamt]), rows, choose=False)
        share = self._share.belief(*shares(sights), rows)
        fits = ndtr((line - share.mean) / share.deviation)
        worth = self._worth(rows, rate, fits, None if best is None else best.log_rate)
        top = np.flatnonzero(worth >= worth.max() - 1e-12 * abs(worth.max()))
        at = int(self._random.choice(top))
        return Choice(
            row=int(rows[at]),
            fits=float(fits[at]),
            worth=float(worth[at]),
            gain=None if best is None else float(np.expm1(rate.mean[at] - _rate_of(best))),
            best=None if best is None else best.row,
        )

    def _considered(self, free: Flags, best: Sight | None) -> Rows:
        """The free candidates, or some of very many.

        Those of the best forecasts, the neighbours of the best known one, and some by chance, for
        forecasts may be wrong.
        """
        rows = np.flatnonzero(free)
        if len(rows) <= 3 * _SOME:
            return rows
        chosen = [self._random.choice(rows, _SOME, replace=False)]
        if self._options.log_rate is not None:
            promise = self._options.log_rate[rows]
            if self._options.log_share is not None:
                promise = promise - np.maximum(self._options.log_share[rows], 0.0) * _TOO_LARGE
            chosen.append(rows[np.argpartition(-promise, _SOME)[:_SOME]])
        if best is not None:
            places = self._options.features
            apart = ((places[rows] - places[best.row]) ** 2).sum(axis=1)
            chosen.append(rows[np.argpartition(apart, _SOME)[:_SOME]])
        return np.unique(np.concatenate(chosen))

    def _worth(self, rows: Rows, rate: Belief, fits: Numbers, best: float | None) -> Numbers:
        if best is None:
            # nothing to compare with: what is surely feasible and fast, or most likely to be
            promise = np.exp(rate.mean - rate.mean.max())
            worth: Numbers = promise * fits**_CAUTION + (fits >= _SURE)
            return worth
        gained = _expected_improvement(rate.mean, rate.deviation, best) * fits**_CAUTION
        seconds = self._options.seconds
        return gained if seconds is None else gained / seconds[rows]

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
