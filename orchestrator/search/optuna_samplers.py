"""Optuna's samplers on a space of legal plans; they try no plan twice."""

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.core.inputs import PlanProposed
from orchestrator.core.objective import Objective, is_measured, score
from orchestrator.core.reasons import Sampled
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.search.base import AbstractProposer, drop_dominated
from orchestrator.search.encoding import Points, distributions, parameters, position
from orchestrator.search.observations import constraints_of
from orchestrator.search.plimsoll import PlimsollProposer
from orchestrator.search.transfer import EarlierStudy
from search_spaces.costs.forecast import SearchPrior
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import Space
from search_spaces.specification.schema import Sampler, SweepSpec

# Optuna's TPE models the best tenth of the trials and starts with ten at random. In a sweep of 24
# trials that is 2 good ones, too few to learn the memory limit from. On a synthetic surface where
# 30 % of the plans run out of memory (tests/orchestrator/search/test_learning.py), a fifth and
# eight run out in 19 % of trials 10 to 23 instead of 27 %, with an equally good best plan.
_GOOD_SHARE = 0.2
_START_TRIALS = 8
_TOLERANCE = 1e-12  # rounding error of distances


def proposer_of(
    space: Space, spec: SweepSpec, tried: int, earlier: Sequence[EarlierStudy] = ()
) -> AbstractProposer:
    """Returns the sampler that a specification names.

    Args:
        space: The plans to propose from.
        spec: The specification.
        tried: Number of records at the start. Each driver of a study draws other random numbers,
            but a repeated sweep draws the same.
        earlier: Other studies of the same job, for transfer.
    """
    seed = (spec.study.seed + tried) % 2**32
    if spec.study.sampler == "plimsoll":
        return PlimsollProposer(space, spec, seed, earlier)
    return OptunaProposer(space, spec, seed)


@final
class OptunaProposer(AbstractProposer):
    """Asks an Optuna sampler, and proposes the untried plan nearest to its answer.

    The space of a sweep is discrete and full of holes: most combinations of knobs miss the global
    batch or break a rule, and a plan is not measured twice. So the sampler works on a mirror of
    the study, in memory, and only legal untried plans reach the study itself.

    The mirror is built from records and follows the current headroom and space, even if the trials
    ran with others. There, a trial that ran out of memory has its constraint and the worst value
    measured so far, since samplers ignore trials without a value. The study itself holds no
    made-up value.
    """

    def __init__(self, space: Space, spec: SweepSpec, seed: int) -> None:
        """Makes the sampler that the specification names, with its objective and constraints."""
        self._name = name = spec.study.sampler
        self._ranking = PlimsollProposer(space, spec, spec.study.seed)
        self._table = space.table
        self._searched = distributions(space)
        self._objective = Objective.of(spec)
        self._random = random.Random(seed)
        self._sampler = _optuna_sampler(name, seed)
        self._worst = 0.0
        self._reset_mirror()

    def propose(self, sweep: SweepState, prior: SearchPrior | None) -> PlanProposed:
        return PlanProposed(plan=self._choose(sweep), reason=Sampled(sampler=self._name))

    def leaders(self, sweep: SweepState, prior: SearchPrior | None, count: int) -> tuple[Plan, ...]:
        """Returns what Plimsoll's search expects: no sampler of Optuna has a model of all plans."""
        return self._ranking.leaders(sweep, prior, count)

    def regret_bound(self, sweep: SweepState, prior: SearchPrior | None) -> float | None:
        return None if sweep.untried.any() else 1.0

    def _choose(self, sweep: SweepState) -> Plan:
        untried = self._table.take(sweep.untried)
        if self._sampler is None or not self._searched:
            return self._random.choice(untried)
        self._update_mirror(sweep.records)
        trial = self._mirror.ask(self._searched)
        params = trial.params
        self._mirror.tell(trial, state=TrialState.FAIL)  # its result arrives as a record
        candidates = drop_dominated(untried, sweep.records)
        distances = self._distances(params, candidates)
        nearest = np.flatnonzero(distances <= distances.min() + _TOLERANCE).tolist()
        return candidates[self._random.choice(nearest)]

    def _update_mirror(self, records: Sequence[Record]) -> None:
        """Adds the records since the last call; starts over if the worst value changed."""
        worst = min(
            (score(record, self._objective) for record in records if is_measured(record)),
            default=0.0,
        )
        if worst != self._worst:
            self._worst = worst
            self._reset_mirror()
        new = [record for record in records if record.number not in self._mirrored]
        self._mirrored.update(record.number for record in new)
        self._mirror.add_trials(list(self._mirror_trials(new)))

    def _mirror_trials(self, records: Sequence[Record]) -> Iterator[FrozenTrial]:
        for record in records:
            params = parameters(record.plan, self._searched)
            violations = constraints_of(record, self._objective)
            if not violations or params is None:
                continue
            yield create_trial(
                params=params,
                distributions=self._searched,
                value=score(record, self._objective) if is_measured(record) else self._worst,
                constraints=dict(violations),
            )

    def _reset_mirror(self) -> None:
        self._mirror = optuna.create_study(direction="maximize", sampler=self._sampler)
        self._mirrored: set[int] = set()

    def _distances(self, params: Mapping[str, Any], table: PlanTable) -> Points:
        """Returns the distance of each plan: the sum over knobs, 0 to 1 each."""
        distances = np.zeros(len(table))
        for name, distribution in self._searched.items():
            places = np.array([position(distribution, value) for value in table.values[name]])
            distance = np.abs(places - position(distribution, params[name]))
            if isinstance(distribution, CategoricalDistribution):
                distance = (distance > 0).astype(np.float64)
            distances += distance[table.codes[name]]
        return distances


def _optuna_sampler(name: Sampler, seed: int) -> BaseSampler | None:
    """Makes the Optuna sampler of that name; None for random search."""
    if name == "tpe":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # Optuna 6 removes gamma
            return TPESampler(
                n_startup_trials=_START_TRIALS,
                gamma=lambda trials: math.ceil(_GOOD_SHARE * trials),
                multivariate=True,
                seed=seed,
            )
    if name == "gp":
        return GPSampler(n_startup_trials=_START_TRIALS, seed=seed, deterministic_objective=False)
    return None
