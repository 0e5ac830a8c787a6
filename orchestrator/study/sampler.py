"""Optuna's samplers on a space of legal plans, none of them tried twice."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.study.parameters import parameters
from search_spaces.plan import Plan
from search_spaces.spec.schema import Sampler

Distributions = dict[str, BaseDistribution]


class CandidateSampler(BaseSampler):
    """Asks another sampler, and takes the untried candidate nearest to its proposal.

    The spaces of a sweep are discrete and full of holes: most combinations of knobs do not meet
    the global batch or break a rule, and a plan that was measured is not measured again. So the
    inner sampler learns and proposes in a mirror of the study, in memory, and only legal untried
    plans reach the study itself. In the mirror an out-of-memory trial has its constraint and the
    worst value measured so far, since samplers pass over trials without a value; the study
    itself holds no made-up value.
    """

    def __init__(
        self,
        inner: BaseSampler | None,
        searched: Distributions,
        untried: Callable[[], Sequence[Plan]],
        seed: int,
    ) -> None:
        """Wraps a sampler.

        Args:
            inner: Who proposes; None: candidates are drawn at random.
            searched: A distribution for each searched knob.
            untried: The candidates of which no trial has ended or is under way.
            seed: Of random draws.
        """
        self._searched = searched
        self._untried = untried
        self._random = random.Random(seed)
        self._inner = inner
        self._mirror = optuna.create_study(direction="maximize", sampler=inner)
        self._mirrored: set[int] = set()

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> Distributions:
        """All searched knobs, always: they are proposed together."""
        return self._searched

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: Distributions
    ) -> dict[str, Any]:
        """The searched knobs of an untried candidate."""
        candidates = self._untried()
        if self._inner is None:
            return parameters(self._random.choice(candidates), self._searched)
        self._mirror_trials(study)
        proposed = self._mirror.ask(self._searched)
        self._mirror.tell(proposed, state=TrialState.FAIL)  # its end comes through the study
        nearest = min(
            self._random.sample(candidates, len(candidates)),
            key=lambda plan: self._distance(plan, proposed.params),
        )
        return parameters(nearest, self._searched)

    def sample_independent(
        self,
        study: optuna.Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Never needed: every searched knob is sampled relative to the others."""
        raise KeyError(f"{param_name} is no searched knob of this sweep")

    def _mirror_trials(self, study: optuna.Study) -> None:
        """Brings the trials that ended since the last call into the mirror."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
        values = [trial.value for trial in trials if trial.value is not None]
        if not values:
            return  # nothing to learn from yet: a worst value is not known either
        for trial in trials:
            knows_all = self._searched.keys() <= trial.params.keys()
            if trial.number in self._mirrored or not knows_all:
                continue
            self._mirrored.add(trial.number)
            self._mirror.add_trial(
                create_trial(
                    params={name: trial.params[name] for name in self._searched},
                    distributions=self._searched,
                    value=min(values) if trial.value is None else trial.value,
                    constraints=trial.constraints,
                )
            )

    def _distance(self, plan: Plan, proposed: Mapping[str, Any]) -> float:
        """How far a plan is from a proposal: 0 to 1 for each knob, added up."""
        return sum(
            _knob_distance(distribution, getattr(plan, name), proposed[name])
            for name, distribution in self._searched.items()
        )


def make_sampler(name: Sampler, seed: int) -> BaseSampler | None:
    """Optuna's sampler of that name, None for random."""
    if name == "tpe":
        return TPESampler(multivariate=True, group=False, seed=seed)
    if name == "gp":
        return GPSampler(seed=seed, deterministic_objective=False)
    return None


def _knob_distance(distribution: BaseDistribution, one: Any, other: Any) -> float:
    if isinstance(distribution, CategoricalDistribution):
        return float(one != other)
    if isinstance(distribution, IntDistribution) and distribution.log:
        one, other = math.log(one), math.log(other)
        span = math.log(distribution.high) - math.log(distribution.low)
    else:
        span = distribution.high - distribution.low  # type: ignore[attr-defined]  # a number's
    return abs(float(one) - float(other)) / span
