"""Bayesian optimization over a fixed candidate pool, by expected improvement per second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr, stdtr

from orchestrator.core.state import Flags
from orchestrator.search import acquisition
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import Observation, failures, rates, shares, subsample
from orchestrator.search.surrogate import KernelParams, Learned, Rows, Surrogate

_FASTEST = acquisition.SearchObjective()
# Prior standard deviation of an error of the forecast that all candidates share, in logarithms.
# Throughput may be off by anything, since there may be no forecast; memory by less, and by still
# less if the forecast tells the uncertainty of its coefficients
_RATE_OFFSET = 1.0
_SHARE_OFFSET = 0.3
_SHARE_OFFSET_WITH_PARTS = 0.2
_EXTRA_NOISES = (0.0, 0.1, 0.3)  # of throughput, on machines that also run other work
_FAILURE_MEAN = -1.5  # prior mean of the latent of failures, which is above 0 for a failed trial
_FAILURE_KERNEL = KernelParams(
    offset=0.5, slope=0.0, effects=0.0, smooth=1.5, alone=0.2, distance=1.0, noise=0.0
)
_TAIL_DEGREES = 4  # degrees of freedom of Student's t: prediction errors of peaks have heavy tails
_FANTASY_NOISE = 1e-3
_OWN_PARTS = (0.1, 0.04, 0.01)  # nuggets: a plan of which one trial tells may be unlike all others
_SAMPLE = 500  # candidates of each kind that are scored in a very large pool
_OVER_LIMIT_PENALTY = 10.0  # on the log rate, per unit of the log share above 0
_REGRET_RISK = 0.05  # chance that a candidate exceeds the regret bound
# Factor of the deviations in the regret bound: they take one kernel as certain and are too small.
# Source: benchmarks/results/regret_bound.json
REGRET_WIDENING = 2.0
_CHUNK = 4096  # candidates per prediction, which bounds memory


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CandidatePool:
    """The candidates with their features and forecasts.

    `log_rate` and `log_share` are forecasts of throughput and of the peak over the memory limit,
    None without a forecast. `rate_parts` and `share_parts`, of shape (candidates, coefficients),
    say how far a standard deviation of each of a forecast's coefficients moves it. `aim` is the
    objective.
    """

    features: Numbers
    log_rate: Numbers | None
    log_share: Numbers | None
    rate_parts: Numbers | None = None
    share_parts: Numbers | None = None
    aim: acquisition.SearchObjective = _FASTEST

    def __len__(self) -> int:
        return len(self.features)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suggestion:
    """The candidate to try next, with its predictions.

    `gain` is the expected relative improvement over the incumbent, `best` the incumbent's row;
    both are None without an incumbent. `saving` is the share of a run's time (or price) that the
    trial is expected to save, weighted by the chance that the candidate is feasible and better;
    infinite without an incumbent. `reaches` is the chance to meet the lower bound of throughput,
    None without a bound.
    """

    row: int
    fits: float
    saving: float
    gain: float | None = None
    best: int | None = None
    reaches: float | None = None


class Search:
    """Chooses candidates of a fixed pool by their observations."""

    def __init__(self, options: CandidatePool, seed: int = 0) -> None:
        """Makes a search; before any observation it relies on the forecasts.

        Args:
            options: The candidates.
            seed: Random seed, which breaks ties and samples very large pools.
        """
        self._pool = options
        self._objective = options.aim
        features = options.features
        has_parts = options.share_parts is not None
        share_offset = _SHARE_OFFSET_WITH_PARTS if has_parts else _SHARE_OFFSET
        self._rate = Surrogate(
            features, options.log_rate, _RATE_OFFSET, options.rate_parts, noises=_EXTRA_NOISES
        )
        # once repeats tell the noise, nothing is left to explain by more of it
        self._repeated = Surrogate(
            features, options.log_rate, _RATE_OFFSET, options.rate_parts, nuggets=_OWN_PARTS
        )
        self._share = Surrogate(features, options.log_share, share_offset, options.share_parts)
        self._failure = Surrogate(
            features, np.full(len(options), _FAILURE_MEAN), 0.0, structure=_FAILURE_KERNEL
        )
        self._random = np.random.default_rng(seed)

    def choose(
        self,
        observations: Sequence[Observation],
        free: Flags,
        pending: Sequence[int] = (),
        seconds: Numbers | None = None,
    ) -> Suggestion:
        """Chooses the candidate to try next.

        Args:
            observations: Observations of ended trials.
            free: Marks the candidates that may be tried, at least one; of shape (candidates,).
            pending: Candidates of running trials. They are fantasized, and count as incumbents if
                they probably fit.
            seconds: Expected duration of each trial, of shape (candidates,); all are equal if None.
        """
        fitted = self._fit(subsample(observations))
        incumbent = self._incumbent(fitted)
        rows = self._scored_rows(free, incumbent)
        rate, pending_value = self._fantasize(fitted, np.array(pending, dtype=np.intp))
        scores = self._score_rows(fitted, rows, rate)
        saving = np.full(len(rows), np.inf)
        if incumbent is None:
            ranking = acquisition.first_pick_score(scores)
        else:
            threshold = max(incumbent.value, pending_value)
            improvement = acquisition.expected_improvement(scores.mean, scores.deviation, threshold)
            saving = -np.expm1(-improvement * scores.chance)
            ranking = acquisition.constrained_improvement(improvement * scores.reach, scores.fits)
            ranking = ranking if seconds is None else ranking / seconds[rows]
        top = np.flatnonzero(ranking >= ranking.max() - 1e-12 * abs(ranking.max()))
        at = int(self._random.choice(top))
        return Suggestion(
            row=int(rows[at]),
            fits=float(scores.fits[at]),
            saving=float(saving[at]),
            gain=None if incumbent is None else float(np.expm1(scores.mean[at] - incumbent.value)),
            best=None if incumbent is None else incumbent.row,
            reaches=None if self._objective.lower_bound is None else float(scores.reach[at]),
        )

    def regret_bound(self, observations: Sequence[Observation], free: Flags) -> float | None:
        """Returns the largest ratio by which a free candidate may beat the incumbent.

        Holds with 95 % confidence under the model: the chances of all candidates to be feasible and
        above the bound add up to 5 % (Boole's inequality). Memory errors are normal here, without
        the heavy tails: large errors are shared by many plans, and the sum would count them once
        for each.

        Args:
            observations: Observations of ended trials.
            free: Marks the candidates that may be tried, of shape (candidates,).

        Returns:
            The ratio, 1 or more; None without an incumbent.
        """
        fitted = self._fit(subsample(observations))
        incumbent, rows = self._incumbent(fitted), np.flatnonzero(free)
        if incumbent is None:
            return None
        chunks = [
            self._score_rows(fitted, chunk, fitted.rate, tail_degrees=np.inf)
            for chunk in np.array_split(rows, -(-len(rows) // _CHUNK))
            if len(chunk)
        ]
        low, high = 0.0, 10.0  # logarithms
        while high - low > 1e-4:
            middle = (low + high) / 2
            threshold = incumbent.value + middle
            risk = sum(
                acquisition.exceedance(chunk, threshold, REGRET_WIDENING) for chunk in chunks
            )
            low, high = (middle, high) if risk > _REGRET_RISK else (low, middle)
        return float(np.exp(high))

    def leaders(
        self,
        observations: Sequence[Observation],
        count: int,
        enough: float = 0.0,
        quantile: float | None = None,
    ) -> list[int]:
        """Returns the measured candidate that is expected to be best, and its challengers.

        The first has the highest posterior mean: the highest of many single trials was lucky. The
        others follow by how few standard deviations they are from beating it by more than `enough`.

        Args:
            observations: Observations of ended trials.
            count: Most candidates to return.
            enough: Difference that does not matter, as a logarithm.
            quantile: Standard deviations at which a difference is certain, once repeats have told
                the noise of trials; the first is then returned alone if it is clear.

        Source:
            EB-TC: Jourdan, Degenne and Kaufmann, "An epsilon-best-arm identification algorithm for
            fixed-confidence and beyond", NeurIPS 2023.
        """
        fitted = self._fit(subsample(observations))
        rows = self._answered_rows(fitted)
        if not len(rows):
            return []
        rate = fitted.rate
        if quantile is not None:
            rate = self._repeated.learn(*rates(fitted.observations))
        scores = self._score_rows(fitted, rows, rate)
        first = int(np.argmax(scores.mean))
        behind = scores.mean[first] - scores.mean
        doubt = np.hypot(scores.deviation, scores.deviation[first])
        cost = (behind + enough) / doubt
        cost[first] = -np.inf
        order = np.argsort(cost, kind="stable")
        if quantile is not None and (cost[order[1:]] > quantile).all():
            count = 1
        return rows[order[:count]].tolist()

    def _answered_rows(self, fitted: _Fitted) -> Rows:
        answered = {one.row for one in fitted.observations if self._objective.answered(one)}
        return np.array(sorted(answered), dtype=np.intp)

    def _fit(self, observations: Sequence[Observation]) -> _Fitted:
        any_failed = any(observation.failed for observation in observations)
        return _Fitted(
            observations=observations,
            rate=self._rate.learn(*rates(observations)),
            share=self._share.learn(*shares(observations)),
            failure=self._failure.learn(*failures(observations)) if any_failed else None,
        )

    def _fantasize(self, fitted: _Fitted, pending: Rows) -> tuple[Learned, float]:
        """Adds the posterior mean of each pending trial as an observation of its throughput.

        Returns:
            The surrogate of throughput, and the best expected objective of the pending trials that
            are probably feasible.
        """
        if not len(pending):
            return fitted.rate, -np.inf
        scores = self._score_rows(fitted, pending, fitted.rate)
        probable = scores.mean[scores.chance >= acquisition.MIN_FIT_PROBABILITY]
        fantasies = [
            Observation(row=row, log_rate=mean, rate_noise=_FANTASY_NOISE)
            for row, mean in zip(
                pending.tolist(), fitted.rate.of(pending).mean.tolist(), strict=True
            )
        ]
        rate = self._rate.learn(*rates([*fitted.observations, *fantasies]), choose=False)
        return rate, float(probable.max(initial=-np.inf))

    def _score_rows(
        self, fitted: _Fitted, rows: Rows, learned: Learned, tail_degrees: float = _TAIL_DEGREES
    ) -> acquisition.Scores:
        """Scores candidates by a surrogate of throughput, and by those of memory and failures."""
        rate, share = learned.of(rows), fitted.share.of(rows)
        mean, deviation = self._objective.expected(rate, share, rows)
        margin = self._objective.beyond(rate, rows)
        fits = stdtr(tail_degrees, (self._objective.line - share.mean) / share.deviation)
        if fitted.failure is not None:
            failure = fitted.failure.of(rows)
            fits = fits * ndtr(-failure.mean / failure.deviation)
        return acquisition.Scores(
            mean=mean,
            deviation=deviation,
            fits=fits,
            reach=np.ones(len(rows)) if margin is None else ndtr(margin),
        )

    def _scored_rows(self, free: Flags, incumbent: _Incumbent | None) -> Rows:
        """Returns the free candidates, or a subset of a very large pool.

        The subset has the best forecasts, the incumbent's neighbours and, since forecasts may be
        wrong, a random sample.
        """
        rows = np.flatnonzero(free)
        if len(rows) <= 3 * _SAMPLE:
            return rows
        subsets = [self._random.choice(rows, _SAMPLE, replace=False)]
        if self._pool.log_rate is not None:
            forecast = self._pool.log_rate[rows]
            if self._pool.log_share is not None:
                excess = np.maximum(self._pool.log_share[rows], 0.0)
                forecast = forecast - excess * _OVER_LIMIT_PENALTY
            subsets.append(rows[np.argpartition(-forecast, _SAMPLE)[:_SAMPLE]])
        if incumbent is not None:
            features = self._pool.features
            distances = ((features[rows] - features[incumbent.row]) ** 2).sum(axis=1)
            subsets.append(rows[np.argpartition(distances, _SAMPLE)[:_SAMPLE]])
        return np.unique(np.concatenate(subsets))

    def _incumbent(self, fitted: _Fitted) -> _Incumbent | None:
        """Returns the feasible measured candidate of the fit with the highest posterior mean.

        Not the highest measurement: among noisy ones that was lucky, and no trial would seem worth
        its cost in comparison.
        """
        rows = self._answered_rows(fitted)
        if not len(rows):
            return None
        means = self._score_rows(fitted, rows, fitted.rate).mean
        at = int(np.argmax(means))
        return _Incumbent(int(rows[at]), float(means[at]))


class _Incumbent(NamedTuple):
    """Row of the incumbent, and its posterior mean of the objective."""

    row: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Fitted:
    """Fitted surrogates; no `failure` before any trial has failed."""

    observations: Sequence[Observation]
    rate: Learned
    share: Learned
    failure: Learned | None
