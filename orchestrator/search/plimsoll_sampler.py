"""Sampler for any Optuna study: Bayesian optimization with a memory constraint."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from orchestrator.core.reasons import Promising
from orchestrator.report.reasons import reason_words
from orchestrator.search.encoding import features
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import CONSTRAINT, Observation
from orchestrator.search.pending import Params, Reservations, enqueued, parameters_of
from orchestrator.search.search import CandidatePool, Search, Suggestion

_SCALE = 0.5  # how much candidates differ, as the priors of the search expect
_MIN_NOISE = 1e-3
REASON = "reason"  # user attribute of a trial: the reason for proposing it
_MAX_ENUMERATED = 100_000  # candidates; a larger space is sampled
_SAMPLED = 4096  # candidates of a larger space
_RANDOM_ATTEMPTS = 32  # draws for a new combination, before one is picked from a list


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueScale:
    """Monotone map from objective values to the quantity that the search maximizes.

    Positive values are compared by their logarithms. If any value is 0 or less, all are compared by
    `asinh((value - centre) / spread)`. It is linear around the median and logarithmic far from it,
    so that one huge penalty does not hide the differences between the others.
    """

    sign: int  # 1 to maximize, -1 to minimize
    centre: float = 0.0
    spread: float | None = None  # None: logarithms

    @classmethod
    def of(cls, values: Sequence[float], direction: StudyDirection) -> Self:
        """Returns the scale for the finite values of a study."""
        sign = -1 if direction == StudyDirection.MINIMIZE else 1
        if all(value > 0 for value in values):
            return cls(sign=sign)
        centre = statistics.median(values)
        spread = statistics.median(abs(value - centre) for value in values)
        # The median deviation is 0 if more than half of the values are equal
        return cls(sign=sign, centre=centre, spread=spread or statistics.pstdev(values) or 1.0)

    def scaled(self, value: float) -> float:
        """Returns the quantity that the search maximizes."""
        if self.spread is None:
            return self.sign * math.log(value)
        return self.sign * _SCALE * math.asinh((value - self.centre) / self.spread)

    def value(self, scaled: float) -> float:
        """Returns the value from its scaled form."""
        if self.spread is None:
            return math.exp(self.sign * scaled)
        return self.centre + self.spread * math.sinh(self.sign * scaled / _SCALE)

    def noise(self, value: float, share: float) -> float:
        """Returns the standard deviation of `scaled`, from the value's as a share of it."""
        if self.spread is None:
            return share
        distance = (value - self.centre) / self.spread
        slope = _SCALE / self.spread / math.hypot(1.0, distance)
        return max(share * abs(value) * slope, _MIN_NOISE)


class PlimsollSampler(BaseSampler):
    """Proposes the candidate with the highest constrained expected improvement.

    Objective values are throughputs (or times, if the study minimizes), compared by their
    logarithms; `ValueScale` handles values of 0 or less. The constraint `memory` of a trial is the
    excess of its peak over the limit, as a share of the limit. A pruned trial that violates it ran
    out of memory and needed at least that much. A failed trial makes similar candidates less
    likely to run.

    Each candidate is proposed once before any is repeated, even if threads or processes share the
    study. Enqueued and running trials are pending and fantasized. After all candidates have been
    tried, those that are not running are proposed again.
    """

    def __init__(
        self,
        candidates: Sequence[Params] | None = None,
        distributions: Mapping[str, BaseDistribution] | None = None,
        *,
        log_rate: Numbers | None = None,
        log_share: Numbers | None = None,
        seconds: Numbers | None = None,
        noise: float = 0.01,
        seed: int | None = None,
    ) -> None:
        """Makes a sampler.

        Args:
            candidates: Parameters that may be proposed. None for all combinations of the search
                space, or a random sample if there are too many.
            distributions: Distributions of the candidates' parameters. None for those that the
                trials of the study share.
            log_rate: Forecasts of the candidates' throughputs, as logarithms.
            log_share: Forecasts of their peaks over the memory limit, as logarithms.
            seconds: Expected duration of a trial of each.
            noise: Standard deviation of repeated measurements, as a share of the value.
            seed: Random seed; None for a different one in each process.
        """
        self._candidates = None if candidates is None else tuple(candidates)
        self._distributions = None if distributions is None else dict(distributions)
        self._forecasts = (log_rate, log_share, seconds)
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._shared = IntersectionSearchSpace()
        self._with_pruned = IntersectionSearchSpace(include_pruned=True)
        self._candidate_sets: dict[Any, _CandidateSet] = {}
        self._reservations = Reservations()

    def reseed_rng(self) -> None:
        """Reseeds the random numbers, which Optuna requests in each worker of `n_jobs`."""
        with self._reservations.lock:
            self._random = np.random.default_rng()
            self._independent.reseed_rng()
            for candidates in self._candidate_sets.values():
                candidates.search.reseed(self._new_seed())

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        _refuse_several_objectives(study)
        with self._reservations.lock:
            # If all trials ran out of memory, only pruned ones know the parameters
            return (
                self._distributions
                or self._shared.calculate(study)
                or self._with_pruned.calculate(study)
            )

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        _refuse_several_objectives(study)
        if not search_space:
            return {}
        fixed = enqueued(trial, search_space)
        why = ""

        def propose(past: Sequence[FrozenTrial], yielded: int) -> Params:
            nonlocal why
            chosen, why = self._proposal(study, search_space, past, fixed, yielded)
            return chosen

        chosen = self._reservations.reserve(study, trial, search_space, propose)
        study._storage.set_trial_user_attr(trial._trial_id, REASON, why)
        return dict(chosen)

    def _proposal(
        self,
        study: Study,
        space: dict[str, BaseDistribution],
        past: Sequence[FrozenTrial],
        fixed: Params,
        yielded: int,
    ) -> tuple[Params, str]:
        """Chooses the best candidate after the `yielded` first ones, and the reason.

        Values in `fixed` replace those of the candidate.
        """
        pool = self._candidate_set(study, space, past)
        scale = self._scale_of(study, past)
        untried = np.ones(len(pool.candidates), dtype=bool)
        idle = untried.copy()
        observations, pending = [], []
        for trial in past:
            row = pool.row_of(parameters_of(trial, space))
            if row is None:
                continue
            untried[row] = False
            if not trial.state.is_finished():
                pending.append(row)
                idle[row] = False
            elif (observation := self._observation_of(trial, row, scale)) is not None:
                observations.append(observation)
        matching = pool.matching(fixed)
        free = next(
            rows
            for rows in (untried & matching, idle & matching, matching, untried, idle, ~idle)
            if rows.any()
        )
        choice = pool.search.several(1 + yielded, observations, free, pending)[-1]
        best = None if choice.best is None else pool.candidates[choice.best]
        params = {**pool.candidates[choice.row], **fixed}
        return params, reason_words(_reason(choice, params, best, observations, scale))

    def _candidate_set(
        self, study: Study, space: dict[str, BaseDistribution], past: Sequence[FrozenTrial]
    ) -> _CandidateSet:
        """Returns the candidates of a study, which include every trial with these parameters."""
        key = (study.study_name, tuple(space.items()))
        current = self._candidate_sets.get(key)
        partial_params = (parameters_of(trial, space) for trial in past)
        tried = [params for params in partial_params if space.keys() <= params.keys()]
        if current is not None and (
            self._candidates or all(current.row_of(params) is not None for params in tried)
        ):
            return current
        candidates = list(
            self._candidates or (current and current.candidates) or self._all_or_sample(space)
        )
        if self._candidates is None:
            keys = {_key(candidate, space) for candidate in candidates}
            tried_by_key = {_key(params, space): params for params in tried}
            candidates += [
                {name: params[name] for name in space}
                for params_key, params in tried_by_key.items()
                if params_key not in keys
            ]
        self._candidate_sets[key] = self._new_candidate_set(candidates, space)
        return self._candidate_sets[key]

    def _new_candidate_set(
        self, candidates: Sequence[Params], space: dict[str, BaseDistribution]
    ) -> _CandidateSet:
        rate, share, seconds = self._forecasts if self._candidates else (None, None, None)
        options = CandidatePool(
            features=features(candidates, space),
            log_rate=rate,
            log_share=share,
            seconds=seconds,
        )
        return _CandidateSet(candidates, space, Search(options, seed=self._new_seed()))

    def _new_seed(self) -> int:
        return int(self._random.integers(2**32))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draws a value at random, for the first trials; avoids repeated combinations if it can."""
        _refuse_several_objectives(study)
        space = {**trial.distributions, param_name: param_distribution}
        values = _grid(param_distribution)
        draw = partial(
            self._independent.sample_independent, study, trial, param_name, param_distribution
        )

        def propose(past: Sequence[FrozenTrial], yielded: int) -> Params:
            untaken = _untaken_values(values, trial, space, param_name, past)
            for attempt in range(yielded + _RANDOM_ATTEMPTS):
                value = draw()
                if attempt >= yielded and (not untaken or value in untaken):
                    break
            else:
                value = untaken[int(self._random.integers(len(untaken)))]
            return {**trial.params, param_name: value}

        if not values:
            with self._reservations.lock:
                return draw()
        return self._reservations.reserve(study, trial, space, propose)[param_name]

    def _scale_of(self, study: Study, past: Sequence[FrozenTrial]) -> ValueScale:
        values = [trial.values[0] for trial in past if _has_value(trial)]
        scale = ValueScale.of(values, study.direction)
        if scale.spread is not None and self._candidates and self._forecasts[0] is not None:
            raise ValueError(
                f"a trial of study {study.study_name} has the value {min(values):g}, but"
                " PlimsollSampler was given log_rate, which needs values above 0: return values"
                " above 0, or leave log_rate out"
            )
        return scale

    def _observation_of(
        self, trial: FrozenTrial, row: int, scale: ValueScale
    ) -> Observation | None:
        """Converts a finished trial to an observation; None if it says nothing."""
        excess = trial.constraints.get(CONSTRAINT)
        share = None if excess is None else float(np.log(max(1 + excess, 1e-6)))
        match trial.state:
            case TrialState.COMPLETE if _has_value(trial):
                return Observation(
                    row=row,
                    log_rate=scale.scaled(trial.values[0]),
                    rate_noise=scale.noise(trial.values[0], self._noise),
                    log_share=share,
                    fitted=True,
                )
            case TrialState.PRUNED if excess is not None and excess > 0:
                return Observation(row=row, log_share=share, ran_out=True)
            case TrialState.FAIL:
                return Observation(row=row, failed=True)
            case _:
                return None

    def _all_or_sample(self, space: Mapping[str, BaseDistribution]) -> tuple[Params, ...]:
        grids = [_grid(distribution) for distribution in space.values()]
        if all(grids) and math.prod(map(len, grids)) <= _MAX_ENUMERATED:
            points = itertools.product(*grids)
            return tuple(dict(zip(space, point, strict=True)) for point in points)
        return tuple(
            {name: self._random_value(distribution) for name, distribution in space.items()}
            for _ in range(_SAMPLED)
        )

    def _random_value(self, distribution: BaseDistribution) -> Any:
        if values := _grid(distribution):
            return values[int(self._random.integers(len(values)))]
        low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
        if getattr(distribution, "log", False):
            value = float(np.exp(self._random.uniform(np.log(low), np.log(high))))
            return min(max(value, low), high)  # rounding may carry it beyond the bounds
        return float(self._random.uniform(low, high))


class _CandidateSet:
    """Candidates of one study and search space, and the search over them."""

    def __init__(
        self, candidates: Sequence[Params], space: Mapping[str, BaseDistribution], search: Search
    ) -> None:
        self.candidates = candidates
        self.search = search
        self._space = space
        self._rows = {_key(candidate, space): row for row, candidate in enumerate(candidates)}

    def row_of(self, params: Params) -> int | None:
        if not self._space.keys() <= params.keys():
            return None
        return self._rows.get(_key(params, self._space))

    def matching(self, fixed: Params) -> NDArray[np.bool_]:
        """Marks the candidates with these values."""
        if not fixed:
            return np.ones(len(self.candidates), dtype=bool)
        return np.array(
            [
                all(candidate[name] == value for name, value in fixed.items())
                for candidate in self.candidates
            ]
        )


def _reason(
    choice: Suggestion,
    params: Params,
    best: Params | None,
    observations: Sequence[Observation],
    scale: ValueScale,
) -> Promising:
    """Returns the reason for a proposal: its predictions, and what differs from the incumbent."""
    changes: tuple[tuple[str, Any], ...] = ()
    values: tuple[float, float] | None = None
    if best is not None and choice.gain is not None:
        changes = tuple((name, value) for name, value in params.items() if best.get(name) != value)
        if scale.spread is not None:
            values = _expected_values(choice, choice.gain, observations, scale)
    return Promising(
        fits=choice.fits,
        reaches=choice.reaches,
        gain=choice.gain,
        changes=changes,
        values=values,
    )


def _expected_values(
    choice: Suggestion, gain: float, observations: Sequence[Observation], scale: ValueScale
) -> tuple[float, float]:
    measured = [
        observation.log_rate for observation in observations if observation.row == choice.best
    ]
    best = statistics.fmean(value for value in measured if value is not None)
    return scale.value(best + math.log1p(gain)), scale.value(best)


def _has_value(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0])


def _refuse_several_objectives(study: Study) -> None:
    if (count := len(study.directions)) > 1:
        raise ValueError(
            f"PlimsollSampler supports one objective, study {study.study_name} has {count}:"
            " return the one to optimize, and set a limit on another as a constraint"
            f' (trial.set_constraint("{CONSTRAINT}", ...))'
        )


def _untaken_values(
    values: Sequence[Any],
    trial: FrozenTrial,
    space: Mapping[str, BaseDistribution],
    name: str,
    past: Sequence[FrozenTrial],
) -> list[Any]:
    """Returns the values of a trial's next parameter that lead to a new combination.

    Trials with further parameters show how many combinations follow a value, and take one each.
    A trial without further ones takes the value itself, or a combination that is not known yet.
    """
    taken: dict[Any, int] = {}
    combinations: dict[Any, set[tuple[Any, ...]]] = {}
    sizes: dict[Any, float] = {}
    for other in past:
        params = parameters_of(other, space)
        if params != {**trial.params, name: params.get(name)}:
            continue
        value = params[name]
        further = sorted(other.distributions.keys() - space.keys())
        if further:
            counts = [len(_grid(other.distributions[key])) or math.inf for key in further]
            combination = tuple(other.params[key] for key in further)
            combinations.setdefault(value, set()).add(combination)
            sizes[value] = max(sizes.get(value, 0), math.prod(counts))
        else:
            taken[value] = taken.get(value, 0) + 1
    return [
        value
        for value in values
        if taken.get(value, 0) + len(combinations.get(value, ())) < sizes.get(value, 1)
    ]


def _key(params: Params, space: Mapping[str, BaseDistribution]) -> tuple[Any, ...]:
    return tuple(params.get(name) for name in space)


def _grid(distribution: BaseDistribution) -> list[Any]:
    """Returns all values in order; none if the distribution is continuous or too large."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    step = getattr(distribution, "step", None)
    if step is None:
        return []
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    count = math.floor((high - low) / step + 1e-9) + 1
    return [low + step * number for number in range(count)] if count <= _MAX_ENUMERATED else []
