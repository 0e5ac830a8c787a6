"""Optuna's samplers on a space of legal plans, none of them tried twice."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState, create_trial

from orchestrator.core.objective import Objective, measured, score
from orchestrator.search.base import AbstractProposer, Proposal, SearchState, drop_dominated
from orchestrator.search.encoding import distributions, parameters, place
from orchestrator.search.observations import constraints_of
from search_spaces.plan import Plan
from search_spaces.plan_table import Candidates, PlanTable, candidates_of
from search_spaces.space import Space
from search_spaces.spec.schema import Sampler
from search_spaces.trial import Record

Points = NDArray[np.float64]

# Optuna takes the best tenth of the trials as those to be like, and ten at random to begin with:
# 2 good ones of a sweep's 24 are too few to learn from where it runs out of memory. On a synthetic
# surface with 30 % of such plans (tests/orchestrator/search/test_learning.py) a fifth and eight
# run out in 19 % of trials 10 to 23 instead of 27 %, and find as good a best.
_GOOD_SHARE = 0.2
_START_TRIALS = 8
_SAME = 1e-12  # difference of distances that is rounding


@final
class OptunaProposer(AbstractProposer):
    """Asks a sampler of Optuna, and gives the untried candidate nearest to its proposal.

    The spaces of a sweep are discrete and full of holes: most combinations of knobs do not meet
    the global batch or break a rule, and a plan that was measured is not measured again. So the
    sampler learns and proposes in a mirror of the study, in memory, and only legal untried
    plans reach the study itself. The mirror is made from records: it follows the headroom and the
    space of today, whatever those of the trials were. In it an out-of-memory trial has its
    constraint and the worst value measured so far, since samplers pass over trials without a
    value; the study itself holds no made-up value.
    """

    def __init__(self, space: Space, name: Sampler, goal: Objective, seed: int) -> None:
        """Makes the sampler.

        Args:
            space: Whose candidates are proposed.
            name: Who proposes.
            goal: What is best, and feasible.
            seed: Of the sampler.
        """
        self._name = name
        self._table = space.table
        self._searched = distributions(space)
        self._goal = goal
        self._random = random.Random(seed)
        self._inner = _inner(name, seed)
        self._worst = 0.0
        self._forget()

    def propose(self, known: SearchState) -> Proposal:
        return Proposal(plan=self._plan(known), why=f"proposed by {self._name}")

    def _plan(self, known: SearchState) -> Plan:
        untried = Candidates(self._table.take(known.free))
        if self._inner is None or not self._searched:
            return self._random.choice(untried)
        self._learn(known.records)
        proposed = self._mirror.ask(self._searched)
        wanted = proposed.params
        self._mirror.tell(proposed, state=TrialState.FAIL)  # its end comes as a record
        hopeful = candidates_of(drop_dominated(untried, known.records))
        far = self._distances(wanted, hopeful.table)
        nearest = np.flatnonzero(far <= far.min() + _SAME).tolist()
        return hopeful[self._random.choice(nearest)]

    def _learn(self, records: Sequence[Record]) -> None:
        """Brings the trials that ended since the last call into the mirror."""
        worst = min(
            (score(record, self._goal) for record in records if measured(record)), default=0.0
        )
        if worst != self._worst:
            self._worst = worst
            self._forget()
        fresh = [record for record in records if record.number not in self._mirrored]
        self._mirrored.update(record.number for record in fresh)
        self._mirror.add_trials(list(self._lessons(fresh)))

    def _lessons(self, records: Sequence[Record]) -> Iterator[FrozenTrial]:
        for record in records:
            known = parameters(record.plan, self._searched)
            missed = constraints_of(record, self._goal)
            if not missed or known is None:
                continue
            yield create_trial(
                params=known,
                distributions=self._searched,
                value=score(record, self._goal) if measured(record) else self._worst,
                constraints=dict(missed),
            )

    def _forget(self) -> None:
        self._mirror = optuna.create_study(direction="maximize", sampler=self._inner)
        self._mirrored: set[int] = set()

    def _distances(self, wanted: Mapping[str, Any], table: PlanTable) -> Points:
        """How far candidates are from a proposal: 0 to 1 for each knob, added up."""
        far = np.zeros(len(table))
        for name, distribution in self._searched.items():
            places = np.array([place(distribution, value) for value in table.values[name]])
            apart = np.abs(places - place(distribution, wanted[name]))
            if isinstance(distribution, CategoricalDistribution):
                apart = (apart > 0).astype(np.float64)
            far += apart[table.codes[name]]
        return far


def _inner(name: Sampler, seed: int) -> BaseSampler | None:
    """Optuna's sampler of that name, None for random."""
    if name == "tpe":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # gamma goes with Optuna 6
            return TPESampler(
                n_startup_trials=_START_TRIALS,
                gamma=lambda trials: math.ceil(_GOOD_SHARE * trials),
                multivariate=True,
                seed=seed,
            )
    if name == "gp":
        return GPSampler(n_startup_trials=_START_TRIALS, seed=seed, deterministic_objective=False)
    return None
