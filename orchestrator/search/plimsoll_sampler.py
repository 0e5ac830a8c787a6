"""A sampler for any study of Optuna: forecasts are its prior, trials its evidence."""

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

from orchestrator.core.events import LIKELY_TO_FIT
from orchestrator.search.encoding import features
from orchestrator.search.gaussian import Numbers
from orchestrator.search.observations import CONSTRAINT, Observation
from orchestrator.search.pending import Params, Reservations, enqueued, parameters_of
from orchestrator.search.search import CandidatePool, Search, Suggestion
from search_spaces.spec.sections import Metric

_SHRINK = 0.5  # the search expects candidates to differ by about this much
_LEAST_NOISE = 1e-3
WHY = "why"  # the trial's attribute that says why it was asked for
_MOST = 100_000  # candidates that are enumerated
_DRAWN = 4096  # where there are more
_DRAWS = 32  # at random for a value that leads to a new combination, before one is chosen
_BEST: Mapping[Metric, str] = {
    "samples_per_second": "fastest",
    "samples_per_price": "cheapest",
    "headroom": "smallest",
}
_TOLD = 2  # knobs that a reason names


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueScale:
    """A monotone map of values: higher is better, and the best candidates lie near each other.

    Values above 0 are compared by their logarithms. Where one is 0 or less, logarithms do not
    exist: values are then compared by `asinh((value - centre) / spread)`, which is linear around
    the median and logarithmic far from it, so that one huge penalty does not hide what
    distinguishes the others.
    """

    sign: int  # 1 to maximise, -1 to minimise
    centre: float = 0.0
    spread: float | None = None  # None: logarithms

    @classmethod
    def of(cls, values: Sequence[float], direction: StudyDirection) -> Self:
        """The scale of a study's finite values."""
        sign = -1 if direction == StudyDirection.MINIMIZE else 1
        if all(value > 0 for value in values):
            return cls(sign=sign)
        centre = statistics.median(values)
        spread = statistics.median(abs(value - centre) for value in values)
        # more than half of the values may be equal
        return cls(sign=sign, centre=centre, spread=spread or statistics.pstdev(values) or 1.0)

    def scaled(self, value: float) -> float:
        """The quantity that the search maximises."""
        if self.spread is None:
            return self.sign * math.log(value)
        return self.sign * _SHRINK * math.asinh((value - self.centre) / self.spread)

    def value(self, scaled: float) -> float:
        """The inverse of `scaled`."""
        if self.spread is None:
            return math.exp(self.sign * scaled)
        return self.centre + self.spread * math.sinh(self.sign * scaled / _SHRINK)

    def noise(self, value: float, share: float) -> float:
        """Standard deviation of `scaled`, where that of the value is a share of it."""
        if self.spread is None:
            return share
        far = (value - self.centre) / self.spread
        slope = _SHRINK / self.spread / math.hypot(1.0, far)
        return max(share * abs(value) * slope, _LEAST_NOISE)


class PlimsollSampler(BaseSampler):
    """Proposes the candidate of the best expected gain, weighed by its chance to fit.

    Values of the study are throughputs (or, where it minimises, times), compared by their
    logarithms; where one is 0 or less, see `ValueScale`. The constraint `memory` of a trial is what
    it held or wanted over the limit, less 1; a pruned trial with a broken one ran out of memory and
    is known to have wanted at least that. One that failed broke for reasons of its own, which its
    neighbours may share.

    No candidate is proposed twice while there are others, also where threads or processes share
    the study: trials that are enqueued or under way are pending, and the search takes them to end
    as expected. When all candidates were tried, it proposes again those that are not under way.
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
        """Learns nothing yet.

        Args:
            candidates: Parameters that may be proposed; None for all that the search space has,
                or some of them drawn at random where they are too many.
            distributions: Of the candidates' parameters; None for those that trials share.
            log_rate: Forecast logarithms of the candidates' throughputs.
            log_share: Forecast logarithms of their peaks over the memory limit.
            seconds: What a trial of each is expected to take.
            noise: By which share two values of one candidate differ, a standard deviation.
            seed: Of what is drawn; None draws differently in each process.
        """
        self._given = None if candidates is None else tuple(candidates)
        self._distributions = None if distributions is None else dict(distributions)
        self._forecasts = (log_rate, log_share, seconds)
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._shared = IntersectionSearchSpace()
        self._with_pruned = IntersectionSearchSpace(include_pruned=True)
        self._grounds: dict[Any, _CandidateSet] = {}
        self._reservations = Reservations()

    def reseed_rng(self) -> None:
        """Draws other numbers from now on, as Optuna asks of each thread of `n_jobs`."""
        with self._reservations.lock:
            self._random = np.random.default_rng()
            self._independent.reseed_rng()
            for ground in self._grounds.values():
                ground.search.reseed(self._drawn_seed())

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        _refuse_several_objectives(study)
        with self._reservations.lock:
            # trials that all ran out of memory still tell what the parameters are
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
        study._storage.set_trial_user_attr(trial._trial_id, WHY, why)
        return dict(chosen)

    def _proposal(
        self,
        study: Study,
        space: dict[str, BaseDistribution],
        past: Sequence[FrozenTrial],
        fixed: Params,
        yielded: int,
    ) -> tuple[Params, str]:
        """The best candidate, or a following one, and why."""
        ground = self._ground_of(study, space, past)
        scale = self._scale_of(study, past)
        untried = np.ones(len(ground.candidates), dtype=bool)
        idle = untried.copy()
        sights, pending = [], []
        for one in past:
            row = ground.row_of(parameters_of(one, space))
            if row is None:
                continue
            untried[row] = False
            if not one.state.is_finished():
                pending.append(row)
                idle[row] = False
            elif (sight := self._sight_of(one, row, scale)) is not None:
                sights.append(sight)
        fitting = ground.having(fixed)
        free = next(
            some
            for some in (untried & fitting, idle & fitting, fitting, untried, idle, ~idle)
            if some.any()
        )
        choice = ground.search.several(1 + yielded, sights, free, pending)[-1]
        chosen = ground.candidates[choice.row]
        best = None if choice.best is None else ground.candidates[choice.best]
        expected = None if scale.spread is None else _expected(choice, sights, scale)
        params = {**chosen, **fixed}
        return params, sentence(choice, params, best, expected=expected)

    def _ground_of(
        self, study: Study, space: dict[str, BaseDistribution], past: Sequence[FrozenTrial]
    ) -> _CandidateSet:
        """The candidates of a study, of which each trial that has the parameters is one."""
        key = (study.study_name, tuple(space.items()))
        known = self._grounds.get(key)
        expected = (parameters_of(one, space) for one in past)
        tried = [params for params in expected if space.keys() <= params.keys()]
        if known is not None and (
            self._given or all(known.row_of(one) is not None for one in tried)
        ):
            return known
        candidates = list(self._given or (known and known.candidates) or self._enumerated(space))
        if self._given is None:
            there = {_key(candidate, space) for candidate in candidates}
            fresh = {_key(params, space): params for params in tried}
            candidates += [
                {name: params[name] for name in space}
                for which, params in fresh.items()
                if which not in there
            ]
        self._grounds[key] = self._begun(candidates, space)
        return self._grounds[key]

    def _begun(
        self, candidates: Sequence[Params], space: dict[str, BaseDistribution]
    ) -> _CandidateSet:
        rate, share, seconds = self._forecasts if self._given else (None, None, None)
        options = CandidatePool(
            features=features(candidates, space),
            log_rate=rate,
            log_share=share,
            seconds=seconds,
        )
        return _CandidateSet(candidates, space, Search(options, seed=self._drawn_seed()))

    def _drawn_seed(self) -> int:
        return int(self._random.integers(2**32))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draws at random, as the first trials of a study are; no combination twice, if it can."""
        _refuse_several_objectives(study)
        space = {**trial.distributions, param_name: param_distribution}
        values = _values(param_distribution)
        drawn = partial(
            self._independent.sample_independent, study, trial, param_name, param_distribution
        )

        def propose(past: Sequence[FrozenTrial], yielded: int) -> Params:
            left = _left_values(values, trial, space, param_name, past)
            for draw in range(yielded + _DRAWS):
                value = drawn()
                if draw >= yielded and (not left or value in left):
                    break
            else:
                value = left[int(self._random.integers(len(left)))]
            return {**trial.params, param_name: value}

        if not values:
            with self._reservations.lock:
                return drawn()
        return self._reservations.reserve(study, trial, space, propose)[param_name]

    def _scale_of(self, study: Study, past: Sequence[FrozenTrial]) -> ValueScale:
        values = [one.values[0] for one in past if _has_value(one)]
        scale = ValueScale.of(values, study.direction)
        if scale.spread is not None and self._given and self._forecasts[0] is not None:
            raise ValueError(
                f"a trial of study {study.study_name} has the value {min(values):g}, but"
                " PlimsollSampler was given log_rate, logarithms of values above 0: return values"
                " above 0, or leave log_rate out"
            )
        return scale

    def _sight_of(self, trial: FrozenTrial, row: int, scale: ValueScale) -> Observation | None:
        """What an ended trial showed; None if nothing of its candidate."""
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

    def _enumerated(self, space: Mapping[str, BaseDistribution]) -> tuple[Params, ...]:
        grid = [_values(distribution) for distribution in space.values()]
        if all(grid) and math.prod(map(len, grid)) <= _MOST:
            return tuple(dict(zip(space, point, strict=True)) for point in itertools.product(*grid))
        return tuple(
            {name: self._drawn(distribution) for name, distribution in space.items()}
            for _ in range(_DRAWN)
        )

    def _drawn(self, distribution: BaseDistribution) -> Any:
        if values := _values(distribution):
            return values[int(self._random.integers(len(values)))]
        low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
        if getattr(distribution, "log", False):
            # rounding may carry an exponential beyond the bounds
            drawn = float(np.exp(self._random.uniform(np.log(low), np.log(high))))
            return min(max(drawn, low), high)
        return float(self._random.uniform(low, high))


class _CandidateSet:
    """Candidates of one study and search space, and the search among them."""

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

    def having(self, fixed: Params) -> NDArray[np.bool_]:
        """Marks the candidates with these values."""
        if not fixed:
            return np.ones(len(self.candidates), dtype=bool)
        return np.array(
            [all(one[name] == value for name, value in fixed.items()) for one in self.candidates]
        )


def sentence(
    choice: Suggestion,
    params: Params,
    best: Params | None,
    metric: Metric = "samples_per_second",
    expected: str | None = None,
) -> str:
    """Explains why a candidate is proposed.

    Args:
        choice: What the search says of it.
        params: Its parameters.
        best: Those of the best one so far; None while there is none.
        metric: What is wanted.
        expected: Replaces the gain, where a ratio of values means nothing.
    """
    likely = f"{choice.fits:.0%} {LIKELY_TO_FIT}"
    if choice.reaches is not None:
        likely += f", {choice.reaches:.0%} to be as fast as asked"
    if choice.gain is None or best is None:
        return f"the {_BEST[metric]} that is likely to fit, as far as is known; {likely}"
    changed = [name for name, value in params.items() if best.get(name) != value]
    named = ", ".join(f"{name} {params[name]}" for name in changed[:_TOLD])
    more = f" and {len(changed) - _TOLD} more" if len(changed) > _TOLD else ""
    tests = f"; tests {named}{more} against the best" if changed else ""
    if metric == "headroom":
        lower = choice.gain / (1 + choice.gain)
        return f"expected peak {lower:.0%} lower than the best's; {likely}{tests}"
    if expected is not None:
        return f"{expected}; {likely}{tests}"
    over = "the samples per price of the best" if metric == "samples_per_price" else "the best"
    return f"expected {choice.gain:+.0%} over {over}; {likely}{tests}"


def _expected(choice: Suggestion, sights: Sequence[Observation], scale: ValueScale) -> str | None:
    """The value that is expected and that of the best; None while none is known."""
    if choice.gain is None:
        return None
    measured = [one.log_rate for one in sights if one.row == choice.best]
    best = statistics.fmean(value for value in measured if value is not None)
    value = scale.value(best + math.log1p(choice.gain))
    return f"expected {value:.3g}, the best so far is {scale.value(best):.3g}"


def _has_value(trial: FrozenTrial) -> bool:
    return trial.state == TrialState.COMPLETE and math.isfinite(trial.values[0])


def _refuse_several_objectives(study: Study) -> None:
    if (count := len(study.directions)) > 1:
        raise ValueError(
            f"PlimsollSampler searches for one objective, study {study.study_name} has {count}:"
            " return the one that is to be best, and set what any answer must keep as a"
            f' constraint (trial.set_constraint("{CONSTRAINT}", ...))'
        )


def _left_values(
    values: Sequence[Any],
    trial: FrozenTrial,
    space: Mapping[str, BaseDistribution],
    name: str,
    past: Sequence[FrozenTrial],
) -> list[Any]:
    """Values of a trial's next parameter that lead to combinations which no other trial has.

    Trials with more parameters tell how many combinations follow a value; a trial with no more
    of them has taken its value, or one of those combinations.
    """
    taken: dict[Any, int] = {}
    followed: dict[Any, set[tuple[Any, ...]]] = {}
    sizes: dict[Any, float] = {}
    for one in past:
        params = parameters_of(one, space)
        if params != {**trial.params, name: params.get(name)}:
            continue
        value = params[name]
        further = sorted(one.distributions.keys() - space.keys())
        if further:
            counts = [len(_values(one.distributions[each])) or math.inf for each in further]
            followed.setdefault(value, set()).add(tuple(one.params[each] for each in further))
            sizes[value] = max(sizes.get(value, 0), math.prod(counts))
        else:
            taken[value] = taken.get(value, 0) + 1
    return [
        value
        for value in values
        if taken.get(value, 0) + len(followed.get(value, ())) < sizes.get(value, 1)
    ]


def _key(params: Params, space: Mapping[str, BaseDistribution]) -> tuple[Any, ...]:
    return tuple(params.get(name) for name in space)


def _values(distribution: BaseDistribution) -> list[Any]:
    """All values in their order; none if they cannot be counted."""
    if isinstance(distribution, CategoricalDistribution):
        return list(distribution.choices)
    step = getattr(distribution, "step", None)
    if step is None:
        return []
    low, high = distribution.low, distribution.high  # type: ignore[attr-defined]
    count = math.floor((high - low) / step + 1e-9) + 1
    return [low + step * number for number in range(count)] if count <= _MOST else []
