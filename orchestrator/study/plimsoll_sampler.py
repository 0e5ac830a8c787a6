"""A sampler for any study of Optuna: forecasts are its prior, trials its evidence."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from orchestrator.core.events import LIKELY_TO_FIT
from orchestrator.search.evidence import Sight
from orchestrator.search.options import Choice, Options
from orchestrator.search.search import Search
from orchestrator.study.constraint import CONSTRAINT
from orchestrator.study.features import features
from search_spaces.spec.objective_section import Metric

WHY = "why"  # the trial's attribute that says why it was asked for
_MOST = 100_000  # candidates that are enumerated
_DRAWN = 4096  # where there are more
_BEST: Mapping[Metric, str] = {
    "samples_per_second": "fastest",
    "samples_per_price": "cheapest",
    "headroom": "smallest",
}
_TOLD = 2  # knobs that a reason names
Params = Mapping[str, Any]
Numbers = NDArray[np.float64]


class PlimsollSampler(BaseSampler):
    """Asks for the candidate of the best expected gain, as likely to fit as may be.

    Values of the study are throughputs (or, where it minimises, times): above 0, compared by their
    logarithms. The constraint `memory` of a trial is what it held or wanted over the limit, less
    1; a pruned trial with a broken one ran out of memory and is known to have wanted at least that.
    One that failed broke for reasons of its own, which its neighbours may share. No candidate is
    proposed twice while there are others.
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
        seed: int = 0,
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
            seed: Of what is drawn.
        """
        self._given = None if candidates is None else tuple(candidates)
        self._distributions = None if distributions is None else dict(distributions)
        self._forecasts = (log_rate, log_share, seconds)
        self._noise = noise
        self._random = np.random.default_rng(seed)
        self._independent = RandomSampler(seed=seed)
        self._shared = IntersectionSearchSpace()
        self._grounds: dict[Any, _Ground] = {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self._distributions or self._shared.calculate(study)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if not search_space:
            return {}
        past = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        ground = self._ground_of(study, search_space, past)
        free = np.ones(len(ground.candidates), dtype=bool)
        sights, pending = [], []
        for one in past:
            row = ground.row_of(one.params)
            if row is None:
                continue
            free[row] = False
            if one.state in (TrialState.RUNNING, TrialState.WAITING):
                pending.append(row)
            elif (sight := self._sight_of(one, row, study.direction)) is not None:
                sights.append(sight)
        if not free.any():
            free[:] = True  # Optuna asks on: what was tried may be tried again
        choice = ground.search.next(sights, free, pending)
        chosen = ground.candidates[choice.row]
        best = None if choice.best is None else ground.candidates[choice.best]
        study._storage.set_trial_user_attr(trial._trial_id, WHY, sentence(choice, chosen, best))
        return dict(chosen)

    def _ground_of(
        self, study: Study, space: dict[str, BaseDistribution], past: Sequence[FrozenTrial]
    ) -> _Ground:
        """The candidates of a study, of which each trial that has the parameters is one."""
        key = (study.study_name, tuple(space.items()))
        known = self._grounds.get(key)
        tried = [one.params for one in past if space.keys() <= one.params.keys()]
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

    def _begun(self, candidates: Sequence[Params], space: dict[str, BaseDistribution]) -> _Ground:
        rate, share, seconds = self._forecasts if self._given else (None, None, None)
        options = Options(
            features=features(candidates, space),
            log_rate=rate,
            log_share=share,
            seconds=seconds,
        )
        return _Ground(candidates, space, Search(options, seed=int(self._random.integers(2**32))))

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def _sight_of(self, trial: FrozenTrial, row: int, direction: StudyDirection) -> Sight | None:
        """What an ended trial showed; None if nothing of its candidate."""
        excess = trial.constraints.get(CONSTRAINT)
        share = None if excess is None else float(np.log(max(1 + excess, 1e-6)))
        match trial.state:
            case TrialState.COMPLETE if math.isfinite(trial.values[0]) and trial.values[0] > 0:
                logarithm = math.log(trial.values[0])
                return Sight(
                    row=row,
                    log_rate=logarithm if direction == StudyDirection.MAXIMIZE else -logarithm,
                    rate_noise=self._noise,
                    log_share=share,
                    fitted=True,
                )
            case TrialState.PRUNED if excess is not None and excess > 0:
                return Sight(row=row, log_share=share, ran_out=True)
            case TrialState.FAIL:
                return Sight(row=row, broke=True)
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
            return float(np.exp(self._random.uniform(np.log(low), np.log(high))))
        return float(self._random.uniform(low, high))


class _Ground:
    """Candidates of one study and search space, and the search among them."""

    def __init__(
        self, candidates: Sequence[Params], space: Mapping[str, BaseDistribution], search: Search
    ) -> None:
        self.candidates = candidates
        self.search = search
        self._space = space
        self._rows = {_key(candidate, space): row for row, candidate in enumerate(candidates)}

    def row_of(self, params: Params) -> int | None:
        return self._rows.get(_key(params, self._space))


def sentence(
    choice: Choice, params: Params, best: Params | None, metric: Metric = "samples_per_second"
) -> str:
    """Why a candidate is asked for."""
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
    over = "the samples per price of the best" if metric == "samples_per_price" else "the best"
    return f"expected {choice.gain:+.0%} over {over}; {likely}{tests}"


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
