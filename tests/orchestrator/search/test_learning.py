"""Optuna's samplers against random search, on a synthetic surface."""

import numpy as np
import optuna
import pytest

from orchestrator.core.records import Record
from orchestrator.search.optuna_samplers import proposer_of
from search_spaces.space import Space
from search_spaces.specification.schema import Sampler
from search_spaces.trial import OutOfMemory
from tests.orchestrator.records import make_record, make_space, make_spec, searching
from tests.orchestrator.study.values import outcome_of, rate, share_of_limit

HEADROOM = 0.05
TRIALS = 24
LEARNED = 10  # trials after which a sampler should know better than chance


@pytest.fixture(scope="module")
def space() -> Space:
    """630 plans; 30 % of them run out of memory."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return make_space(make_spec(train={"global_batch": 128, "sequence_length": 128}))


def searched(space: Space, sampler: Sampler, seed: int) -> tuple[int, float]:
    """Returns trials out of memory after the first ones, and the best speed."""
    spec = make_spec(study={"sampler": sampler, "seed": seed})
    proposer, records = proposer_of(space, spec, 0), list[Record]()
    for number in range(TRIALS):
        state = searching(spec, space, records)
        plan = proposer.propose(state, None).plan if number else space.baseline
        records.append(make_record(number, plan, outcome_of(plan)))
    fitting = [rate(r.plan) for r in records if share_of_limit(r.plan) <= 1 - HEADROOM]
    return sum(isinstance(r.outcome, OutOfMemory) for r in records[LEARNED:]), max(fitting)


@pytest.mark.thorough
@pytest.mark.parametrize(("sampler", "seeds"), [("gp", 2), ("tpe", 16), ("plimsoll", 4)])
def test_samplers_learn_where_memory_ends(space: Space, sampler: Sampler, seeds: int) -> None:
    ours = [searched(space, sampler, seed) for seed in range(seeds)]
    chance = [searched(space, "random", seed) for seed in range(16)]
    (ooms, best), (ooms_by_chance, best_by_chance) = np.mean(ours, 0), np.mean(chance, 0)

    assert ooms < 0.75 * ooms_by_chance
    if sampler != "gp":  # two runs of the GP, which takes its time, tell nothing of its mean best
        assert best > 1.1 * best_by_chance
