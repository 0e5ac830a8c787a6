"""The next candidate: the one whose expected gain per expected cost is best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr

from orchestrator.search.acquisition import (
    LEAST_FITS,
    Scores,
    SearchObjective,
    constrained_improvement,
    expected_improvement,
    first_pick_score,
)
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation, failures, rates, shares, subsample
from orchestrator.search.surrogate import KernelParams, Learned, Prediction, Rows, Surrogate

_LEAST_VARIANCE = 1e-10
_FASTEST = SearchObjective()
# What is believed to be common to all candidates beside the forecast, as a deviation of logarithms:
# of throughput (anything, without a forecast), and of memory
_COMMON_RATE = 1.0
_COMMON_SHARE = 0.3
_UNTOLD_NOISES = (0.0, 0.1, 0.3)  # of throughput: trials on machines with other work differ so
_COMMON_SHARE_BESIDE = 0.2  # the forecast's coefficients, where it tells how sure they are
_SELDOM = 1.5  # deviations below the line beyond which a candidate breaks, before any has
_BREAKS = KernelParams(
    offset=0.5, slope=0.0, effects=0.0, smooth=1.5, alone=0.2, distance=1.0, noise=0.0
)
_TAILS = 4  # degrees of freedom of Student's t: how far peaks may lie from what is believed
_DREAMT = 1e-3  # how exactly a trial under way is taken to end as expected
_SOME = 1000  # candidates of each sort that are looked at where there are very many
_TOO_LARGE = 10.0  # what a peak over the limit costs a forecast, as logarithms
_UNLIKELY = 0.05  # that any candidate left is better than `Search.left` says
_CHUNK = 4096  # candidates that are believed about at once
Flags = NDArray[np.bool_]


@final
class BatchVariance:
    """Deviations of candidates, each taken candidate dreamt to end as it is believed to.

    Means stay where they are then, and what is left of the variances follows from the posterior
    covariances with the taken one: no matrix is factored again (Rasmussen & Williams 2006,
    appendix A.2, one observation at a time).
    """

    def __init__(self, learned: Learned, rows: Rows, deviation: Numbers, noise: float) -> None:
        """Begins with what is believed.

        Args:
            learned: What was learned of the quantity.
            rows: The candidates.
            deviation: Of each of them, by what was learned.
            noise: How exactly what is dreamt is taken to be known, as a deviation.
        """
        self._learned = learned
        self._rows = rows
        self._variance = deviation**2
        self._noise = noise**2 + learned.structure.noise**2
        covariance = learned.surrogate.covariance(learned.structure, rows, learned.rows)
        self._whitened = learned.posterior.whitened(covariance)
        self._steps: list[Numbers] = []

    def without(self, at: int) -> Numbers:
        """Deviations once the candidate at this place of the rows is under way too."""
        learned, one = self._learned, self._rows[at : at + 1]
        prior = learned.surrogate.covariance(learned.structure, self._rows, one)[:, 0]
        shared = prior - self._whitened.T @ self._whitened[:, at]
        for step in self._steps:
            shared -= step * step[at]
        step = shared / np.sqrt(self._variance[at] + self._noise)
        self._steps.append(step)
        self._variance = np.maximum(self._variance - step**2, _LEAST_VARIANCE)
        left: Numbers = np.sqrt(self._variance)
        return left


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidatePool:
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
    aim: SearchObjective = _FASTEST

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
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

    def __init__(self, options: CandidatePool, seed: int = 0) -> None:
        """Believes the forecasts."""
        self._options = options
        self._aim = options.aim
        places = options.features
        sure = options.share_parts is not None
        common = _COMMON_SHARE_BESIDE if sure else _COMMON_SHARE
        self._rate = Surrogate(
            places, options.log_rate, _COMMON_RATE, options.rate_parts, noises=_UNTOLD_NOISES
        )
        self._share = Surrogate(places, options.log_share, common, options.share_parts)
        self._broken = Surrogate(places, np.full(len(options), -_SELDOM), 0.0, structure=_BREAKS)
        self._random = np.random.default_rng(seed)

    def reseed(self, seed: int) -> None:
        """Draws from another stream: among equals, and which of very many candidates count."""
        self._random = np.random.default_rng(seed)

    def next(
        self,
        sights: Sequence[Observation],
        free: Flags,
        pending: Sequence[int] = (),
        seconds: Numbers | None = None,
    ) -> Suggestion:
        """The best candidate to try: see `several`."""
        return self.several(1, sights, free, pending, seconds)[0]

    def several(
        self,
        count: int,
        sights: Sequence[Observation],
        free: Flags,
        pending: Sequence[int] = (),
        seconds: Numbers | None = None,
    ) -> list[Suggestion]:
        """The best candidates to try at once, from one fit; so many, or as many as are free.

        Args:
            count: How many.
            sights: What trials have shown.
            free: Which candidates may be tried, of shape (candidates,); at least one.
            pending: Candidates of trials under way: taken to end as expected, so that what is
                gained is gained over them too. So are those chosen before.
            seconds: What a trial of each takes now, in place of what the options say.
        """
        learned = self._learned(subsample(sights))
        best = self._best(learned, sights)
        rows = self._considered(free, best)
        dreaming = self._dreaming(learned, pending)
        believed = self._believed(dreaming, rows)
        line = -np.inf if best is None else max(best.value, self._under_way(dreaming, pending))
        takes = self._options.seconds if seconds is None else seconds
        doubts: BatchVariance | None = None
        choices = list[Suggestion]()
        left = np.arange(len(rows))  # places of those that are not chosen yet
        while True:
            there = rows[left]
            seen = self._seen(believed.take(left), there)
            gained = None if best is None else expected_improvement(seen.mean, seen.deviation, line)
            worth = (
                first_pick_score(seen)
                if gained is None
                else constrained_improvement(gained * seen.reach, seen.fits)
            )
            if gained is not None and takes is not None:
                worth = worth / takes[there]
            at = self._highest(worth)
            choices.append(self._choice(at, there, seen, worth, gained, best))
            if len(choices) == count or len(left) == 1:
                return choices
            if doubts is None:
                doubts = BatchVariance(dreaming.rate, rows, believed.rate.deviation, _DREAMT)
            doubted = doubts.without(int(left[at]))
            believed = believed._replace(rate=believed.rate._replace(deviation=doubted))
            left = np.delete(left, at)
            if seen.chance[at] >= LEAST_FITS:
                line = max(line, float(seen.mean[at]))

    def _highest(self, worth: Numbers) -> int:
        top = np.flatnonzero(worth >= worth.max() - 1e-12 * abs(worth.max()))
        return int(self._random.choice(top))

    def _choice(
        self,
        at: int,
        rows: Rows,
        seen: Scores,
        worth: Numbers,
        gained: Numbers | None,
        best: _Known | None,
    ) -> Suggestion:
        return Suggestion(
            row=int(rows[at]),
            fits=float(seen.fits[at]),
            worth=float(worth[at]),
            saving=np.inf if gained is None else float(-np.expm1(-gained[at] * seen.chance[at])),
            gain=None if best is None else float(np.expm1(seen.mean[at] - best.value)),
            best=None if best is None else best.row,
            reaches=None if self._aim.lower_bound is None else float(seen.reach[at]),
        )

    def regret_bound(self, sights: Sequence[Observation], free: Flags) -> float | None:
        """How much better than the best known one any free candidate is at most, as a ratio.

        Holds with 95 %, by what is believed: the chances of all candidates to be better still, and
        to fit, add up to 5 % (Boole's inequality). Errors of memory count as normal: far ones are
        shared by many plans, and would count once for each. None while nothing was measured.
        """
        learned = self._learned(subsample(sights))
        best, rows = self._best(learned, sights), np.flatnonzero(free)
        if best is None:
            return None
        parts = [
            self._judged(learned, some, tails=np.inf)
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

    def _learned(self, sights: Sequence[Observation]) -> _Learned:
        broke = any(sight.failed for sight in sights)
        return _Learned(
            sights=sights,
            rate=self._rate.learn(*rates(sights)),
            share=self._share.learn(*shares(sights)),
            broken=self._broken.learn(*failures(sights)) if broke else None,
        )

    def _dreaming(self, learned: _Learned, pending: Sequence[int]) -> _Learned:
        """The same, with trials under way ended as expected."""
        if not pending:
            return learned
        means = learned.rate.of(np.array(pending, dtype=np.intp)).mean.tolist()
        dreamt = [
            Observation(row=row, log_rate=mean, rate_noise=_DREAMT)
            for row, mean in zip(pending, means, strict=True)
        ]
        rate = self._rate.learn(*rates([*learned.sights, *dreamt]), choose=False)
        return replace(learned, rate=rate)

    def _under_way(self, dreaming: _Learned, pending: Sequence[int]) -> float:
        """The best that trials under way are expected to reach, if they probably will."""
        if not pending:
            return -np.inf
        seen = self._judged(dreaming, np.array(pending, dtype=np.intp))
        probable = seen.mean[seen.chance >= LEAST_FITS]
        return float(probable.max(initial=-np.inf))

    def _judged(self, learned: _Learned, rows: Rows, tails: float = _TAILS) -> Scores:
        """What is expected of candidates."""
        return self._seen(self._believed(learned, rows), rows, tails)

    def _believed(self, learned: _Learned, rows: Rows) -> _Believed:
        broken = None if learned.broken is None else learned.broken.of(rows)
        return _Believed(learned.rate.of(rows), learned.share.of(rows), broken)

    def _seen(self, believed: _Believed, rows: Rows, tails: float = _TAILS) -> Scores:
        rate, share, broken = believed
        mean, deviation = self._aim.expected(rate, share, rows)
        beyond = self._aim.beyond(rate, rows)
        fits = stdtr(tails, (self._aim.line - share.mean) / share.deviation)
        if broken is not None:
            fits = fits * ndtr(-broken.mean / broken.deviation)
        return Scores(
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

    def _best(self, learned: _Learned, sights: Sequence[Observation]) -> _Known | None:
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


class _Believed(NamedTuple):
    """What is believed of candidates; of breakages nothing while nothing broke."""

    rate: Prediction
    share: Prediction
    broken: Prediction | None

    def take(self, which: Rows) -> _Believed:
        """Of some of them."""
        broken = None if self.broken is None else self.broken.take(which)
        return _Believed(self.rate.take(which), self.share.take(which), broken)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Learned:
    """What sights taught; of breakages nothing while nothing broke."""

    sights: Sequence[Observation]
    rate: Learned
    share: Learned
    broken: Learned | None
