"""Optuna's samplers against random search, on a synthetic surface."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

import numpy as np
import optuna
import pytest

from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from orchestrator.search.base import AbstractProposer, SearchState
from orchestrator.search.optuna_samplers import OptunaProposer
from orchestrator.search.plimsoll import PlimsollProposer
from search_spaces.space import Space
from search_spaces.spec.schema import Sampler
from search_spaces.trial import OutOfMemory
from tests.orchestrator.records import make_record, make_space, make_spec
from tests.orchestrator.study.values import outcome_of, rate, share_of_limit

HEADROOM = 0.05
LEARNED = 10  # trials after which a sampler should know better than chance


@pytest.fixture(scope="module")
def space() -> Space:
    """630 plans; 30 % of them run out of memory."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return make_space(make_spec(train={"global_batch": 128, "sequence_length": 128}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Result of a sampler: its best plan, and the trials out of memory after its first ones."""

    late_ooms: int
    best: float


def proposer_of(space: Space, sampler: Sampler, seed: int) -> AbstractProposer:
    if sampler == "plimsoll":
        return PlimsollProposer(space, make_spec(), seed)
    return OptunaProposer(space, sampler, Objective(headroom=HEADROOM), seed)


def search(space: Space, sampler: Sampler, seed: int, trials: int) -> Run:
    proposer = proposer_of(space, sampler, seed)
    free, records = np.ones(len(space.table), dtype=bool), list[Record]()
    for number in range(trials):
        known = SearchState(records=records, free=free)
        plan = proposer.propose(known).plan if number else space.baseline
        free[space.table.rows_of(plan)] = False
        records.append(make_record(number, plan, outcome_of(plan)))
    fitting = [r.plan for r in records if share_of_limit(r.plan) <= 1 - HEADROOM]
    return Run(
        late_ooms=sum(isinstance(r.outcome, OutOfMemory) for r in records[LEARNED:]),
        best=max(map(rate, fitting)),
    )


def mean_of(space: Space, sampler: Sampler, seeds: int, trials: int) -> tuple[float, float]:
    runs = [search(space, sampler, seed, trials) for seed in range(seeds)]
    return statistics.fmean(r.late_ooms for r in runs), statistics.fmean(r.best for r in runs)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sampler", "seeds"),
    [("gp", 2), ("tpe", 16), ("plimsoll", 4)],
)
def test_samplers_learn_where_memory_ends(space: Space, sampler: Sampler, seeds: int) -> None:
    trials = 24
    ooms, best = mean_of(space, sampler, seeds, trials)
    ooms_by_chance, best_by_chance = mean_of(space, "random", 16, trials)

    print(f"\n{sampler}: {ooms:.2f} out of memory, best {best:.1f};")
    print(f"random: {ooms_by_chance:.2f} out of memory, best {best_by_chance:.1f}")
    assert ooms < 0.75 * ooms_by_chance
    if sampler != "gp":  # two runs of the GP, which takes its time, tell nothing of its mean best
        assert best > 1.1 * best_by_chance
