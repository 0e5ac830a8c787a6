"""The next candidate: the one whose expected gain per expected cost is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from orchestrator.search.aim import Aim
from orchestrator.search.evidence import Sight, breakages, rates, shares, telling
from orchestrator.search.gaussian import Numbers
from orchestrator.search.surrogate import Learned, Rows, Structure, Surrogate

# What is believed to be common to all candidates beside the forecast, as a deviation of logarithms:
# of throughput (anything, without a forecast), and of memory
_COMMON_RATE = 1.0
_COMMON_SHARE = 0.3
_COMMON_SHARE_BESIDE = 0.2  # the forecast's coefficients, where it tells how sure they are
_SELDOM = 1.5  # deviations below the line beyond which a candidate breaks, before any has
_BREAKS = Structure(offset=0.5, slope=0.0, effects=0.0, smooth=1.5, alone=0.2, distance=1.0)
_SURE = 0.9  # P(fits) that the first trials have, where there are such candidates
_CAUTION = 2.0  # power of P(fits): an out-of-memory trial costs more than its seconds
_LEAST_FITS = 0.5
_LAST = 1e-3
_NOTHING = 1e-7  # what will not fit is not tried for less, while there is anything else
_DREAMT = 1e-3  # how exactly a trial under way is taken to end as expected
_SOME = 1000  # candidates of each sort that are looked at where there are very many
_TOO_LARGE = 10.0  # what a peak over the limit costs a forecast, as logarithms
_UNLIKELY = 0.05  # that any candidate left is better than `Search.left` says
_CHUNK = 4096  # candidates that are believed about at once
_FASTEST = Aim()
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Options:
    """All candidates, as a search sees them.

    `log_rate` and `log_share` are forecasts, None where there are none; the parts say by how much
    a standard deviation of each of a forecast's coefficients moves it (candidates, coefficients).
    `seconds` is what a trial of each is expected to take; `aim` says what is wanted of them.
    """

    features: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    rate_parts: Numbers | None = None
    share_parts: Numbers | None = None
    seconds: Numbers | None = None
    aim: Aim = _FASTEST

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What to try next, and what is expected of it.

    `gain` is what is expected of what is wanted over the best known, less 1, and `best` that one's
    candidate; None while none is known. `saving` is the share of a run's time (or price) that
    knowing it is expected to save, the chance counted that it is no better or does not fit;
    infinite while none is known. `worth` is what candidates were compared by. `reaches` is the
    chance that its throughput is as high as asked; None if nothing is asked.
    """

    row: int
    fits: float
    worth: float
    saving: float
    gain: float | None = None
    best: int | None = None
    reaches: float | None = None


class Search:
    """Chooses among fixed candidates by what was seen of them."""

    def __init__(self, options: Options, seed: int = 0) -> None:
        """Believes the forecasts."""
        self._options = options
        self._aim = options.aim
        places = options.features
        sure = options.share_parts is not None
        common = _COMMON_SHARE_BESIDE if sure else _COMMON_SHARE
        self._rate = Surrogate(places, options.log_rate, _COMMON_RATE, options.rate_parts)
        self._share = Surrogate(places, options.log_share, common, options.share_parts)
        self._broken = Surrogate(places, np.full(len(options), -_SELDOM), 0.0, structure=_BREAKS)
        self._random = np.random.default_rng(seed)

    def next(
        self,
        sights: Sequence[Sight],
        free: Flags,
        pending: Sequence[int] = (),
        seconds: Numbers | None = None,
    ) -> Choice:
        """The best candidate to try.

        Args:
            sights: What trials have shown.
            free: Which candidates may be tried, of shape (candidates,); at least one.
            pending: Candidates of trials under way: taken to end as expected, so that what is
                gained is gained over them too.
            seconds: What a trial of each takes now, in place of what the options say.
        """
        learned = self._learned(telling(sights))
        best = self._best(learned, sights)
        rows = self._considered(free, best)
        seen = self._judged(dreaming := self._dreaming(learned, pending), rows)
        takes = self._options.seconds if seconds is None else seconds
        gained = None
        if best is not None:
            line = max(best.value, self._under_way(dreaming, pending))
            gained = _improvement(seen.mean, seen.deviation, line)
        worth = _promise(seen) if gained is None else _acceptable(gained * seen.reach, seen.fits)
        if gained is not None and takes is not None:
            worth = worth / takes[rows]
        top = np.flatnonzero(worth >= worth.max() - 1e-12 * abs(worth.max()))
        at = int(self._random.choice(top))
        return Choice(
            row=int(rows[at]),
            fits=float(seen.fits[at]),
            worth=float(worth[at]),
            saving=np.inf if gained is None else float(-np.expm1(-gained[at] * seen.chance[at])),
            gain=None if best is None else float(np.expm1(seen.mean[at] - best.value)),
            best=None if best is None else best.row,
            reaches=None if self._aim.least is None else float(seen.reach[at]),
        )

    def left(self, sights: Sequence[Sight], free: Flags) -> float | None:
        """How much better than the best known one any free candidate is at most, as a ratio.

        Holds with 95 %, by what is believed: the chances of all candidates to be better still, and
        to fit, add up to 5 % (Boole's inequality). None while nothing was measured.
        """
        learned = self._learned(telling(sights))
        best, rows = self._best(learned, sights), np.flatnonzero(free)
        if best is None:
            return None
        parts = [
            self._judged(learned, some)
            for some in np.array_split(rows, -(-len(rows) // _CHUNK))
            if len(some)
        ]
        low, high = 0.0, 10.0  # logarithms
        while high - low > 1e-4:
            middle = (low + high) / 2
            line = best.value + middle
            chance = sum(
                float((part.chance * ndtr((part.mean - line) / part.deviation)).sum())
                for part in parts
            )
            low, high = (middle, high) if chance > _UNLIKELY else (low, middle)
        return float(np.exp(high))

    def _learned(self, sights: Sequence[Sight]) -> _Learned:
        broke = any(sight.broke for sight in sights)
        return _Learned(
            sights=sights,
            rate=self._rate.learn(*rates(sights)),
            share=self._share.learn(*shares(sights)),
            broken=self._broken.learn(*breakages(sights)) if broke else None,
        )

    def _dreaming(self, learned: _Learned, pending: Sequence[int]) -> _Learned:
        """The same, with trials under way ended as expected."""
        if not pending:
            return learned
        means = learned.rate.of(np.array(pending, dtype=np.intp)).mean.tolist()
        dreamt = [
            Sight(row=row, log_rate=mean, rate_noise=_DREAMT)
            for row, mean in zip(pending, means, strict=True)
        ]
        rate = self._rate.learn(*rates([*learned.sights, *dreamt]), choose=False)
        return replace(learned, rate=rate)

    def _under_way(self, dreaming: _Learned, pending: Sequence[int]) -> float:
        """The best that trials under way are expected to reach, if they probably will."""
        if not pending:
            return -np.inf
        seen = self._judged(dreaming, np.array(pending, dtype=np.intp))
        probable = seen.mean[seen.chance >= _LEAST_FITS]
        return float(probable.max(initial=-np.inf))

    def _judged(self, learned: _Learned, rows: Rows) -> _Judged:
        """What is expected of candidates."""
        rate, share = learned.rate.of(rows), learned.share.of(rows)
        mean, deviation = self._aim.expected(rate, share, rows)
        beyond = self._aim.beyond(rate, rows)
        fits = ndtr((self._aim.line - share.mean) / share.deviation)
        if learned.broken is not None:
            broken = learned.broken.of(rows)
            fits = fits * ndtr(-broken.mean / broken.deviation)
        return _Judged(
            mean=mean,
            deviation=deviation,
            fits=fits,
            reach=np.ones(len(rows)) if beyond is None else ndtr(beyond),
        )

    def _considered(self, free: Flags, best: _Known | None) -> Rows:
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

    def _best(self, learned: _Learned, sights: Sequence[Sight]) -> _Known | None:
        """The best of those that are an answer, by what is believed of them.

        Of noisy measurements the highest was lucky: beside that, nothing seems worth a trial.
        """
        rows = np.unique([s.row for s in sights if self._aim.answered(s)]).astype(np.intp)
        if not len(rows):
            return None
        believed = self._judged(learned, rows).mean
        at = int(np.argmax(believed))
        return _Known(int(rows[at]), float(believed[at]))


class _Known(NamedTuple):
    """A candidate that is an answer, and what it is believed to reach of what is wanted."""

    row: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Learned:
    """What sights taught; of breakages nothing while nothing broke."""

    sights: Sequence[Sight]
    rate: Learned
    share: Learned
    broken: Learned | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Judged:
    """Of candidates: what is wanted of them, and the chances that they fit and reach the least."""

    mean: Numbers
    deviation: Numbers
    fits: Numbers
    reach: Numbers

    @property
    def chance(self) -> Numbers:
        """That a candidate is an answer."""
        return self.fits * self.reach


def _promise(seen: _Judged) -> Numbers:
    """What candidates are compared by while there is nothing to compare with.

    What is surely feasible and fast: it shows most of what memory is left, without running out.
    """
    hope = np.exp(seen.mean - seen.mean.max()) * seen.reach
    promise: Numbers = hope * seen.fits**_CAUTION + (seen.fits >= _SURE)
    return promise


def _acceptable(gained: Numbers, fits: Numbers) -> Numbers:
    """What gains are worth by the chance to fit: what will not is tried when nothing else pays."""
    unlikely = fits < _LEAST_FITS
    worth: Numbers = gained * fits**_CAUTION * np.where(unlikely, _LAST, 1.0)
    if unlikely.all():
        return worth
    return np.where(unlikely & (worth < _NOTHING), -1.0, worth)


def _improvement(mean: Numbers, deviation: Numbers, best: float) -> Numbers:
    """What is expected to be gained of the logarithm over the best (Jones et al. 1998)."""
    place = (mean - best) / deviation
    density = np.exp(-0.5 * place**2) / np.sqrt(2 * np.pi)
    found: Numbers = deviation * (place * ndtr(place) + density)
    return found
