"""Plimsoll's sampler on a space of plans, with forecasts for a synthetic machine."""

import math
from dataclasses import replace

import numpy as np
import pytest

from orchestrator.core.reasons import Remeasures
from orchestrator.core.records import Record
from orchestrator.search import plimsoll
from orchestrator.search.observations import Observation
from orchestrator.search.plimsoll import PlimsollProposer
from orchestrator.search.search import Search
from search_spaces.costs.forecast import SearchPrior
from search_spaces.space import Space
from search_spaces.trial import Crashed, Measured
from tests.orchestrator.records import make_record, make_space, make_spec, searching
from tests.orchestrator.study.values import outcome_of, rate, share_of_limit
from tests.outcomes import make_measured

SPEC = make_spec(train={"global_batch": 128, "sequence_length": 128})


@pytest.fixture(scope="module")
def space() -> Space:
    return make_space(SPEC)


def prospects_of(space: Space, *, factor: float = 1.0) -> SearchPrior:
    """Biased forecasts, with one coefficient for all memory and one for that of blocks."""
    plans = list(space.candidates)
    log_share = np.log([share_of_limit(plan) for plan in plans]) + np.log(factor)
    log_rate = np.log([rate(plan) for plan in plans]) + np.log(factor)
    batch = np.array([plan.micro_batch for plan in plans]) / 64
    parts = np.stack([np.full(len(plans), 0.2), 0.3 * batch], axis=1)
    return SearchPrior(
        log_rate=log_rate,
        rate_parts=parts,
        log_share=log_share,
        share_parts=parts,
        step_seconds=128 / np.exp(log_rate),
    )


def searched(space: Space, prior: SearchPrior | None, trials: int) -> list[Record]:
    proposer = PlimsollProposer(space, SPEC, seed=0)
    records = list[Record]()
    for number in range(trials):
        state = searching(SPEC, space, records)
        proposal = proposer.propose(state, prior)
        plan = proposal.plan if number else space.baseline
        assert state.untried[space.table.rows_of(proposal.plan)].all()
        records.append(replace(make_record(number, plan, outcome_of(plan)), reason=proposal.reason))
    return records


def best_of(records: list[Record]) -> float:
    return max(
        rate(record.plan)
        for record in records
        if isinstance(record.outcome, Measured) and record.outcome.memory.share <= 0.95
    )


@pytest.mark.parametrize("factor", [1.0, 0.7, 1.4])
def test_forecasts_that_are_off_by_a_factor_lead_to_the_best_in_six_trials(
    space: Space, factor: float
) -> None:
    optimum = max(rate(plan) for plan in space.candidates if share_of_limit(plan) <= 0.95)
    records = searched(space, prospects_of(space, factor=factor), 6)

    assert best_of(records) >= 0.98 * optimum
    assert sum(not isinstance(record.outcome, Measured) for record in records) <= 1


def test_plans_like_one_that_crashes_are_left(space: Space) -> None:
    """All plans with eager attention crash, and are forecast to be the fastest."""
    proposer = PlimsollProposer(space, SPEC, seed=0)
    told = prospects_of(space)
    eager = space.table.is_value("attention", "eager")
    told = replace(told, log_rate=told.log_rate + 0.5 * eager)
    records = list[Record]()
    for number in range(7):
        plan = proposer.propose(searching(SPEC, space, records), told).plan
        broke = Crashed(cause="exception", rank=0, phase="forward", detail="no kernel")
        outcome = broke if plan.attention == "eager" else outcome_of(plan)
        records.append(make_record(number, plan, outcome))

    assert sum(record.plan.attention == "eager" for record in records) <= 3
    optimum = max(
        rate(plan)
        for plan in space.candidates
        if share_of_limit(plan) <= 0.95 and plan.attention == "sdpa"
    )
    assert best_of(records) >= 0.98 * optimum


def test_of_too_many_plans_the_promising_and_some_others_are_searched(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plimsoll, "MAX_CANDIDATES", 60)
    optimum = max(rate(plan) for plan in space.candidates if share_of_limit(plan) <= 0.95)

    assert best_of(searched(space, prospects_of(space), 6)) >= 0.98 * optimum

    monkeypatch.setattr(plimsoll, "MAX_CANDIDATES", 8)  # which are used up
    assert len({record.plan for record in searched(space, None, 20)}) == 20


def test_what_is_left_is_bounded(space: Space) -> None:
    """No untried plan exceeds the regret bound, which gets tighter as the search progresses."""
    proposer, told = PlimsollProposer(space, SPEC, seed=0), prospects_of(space)
    bounds = []
    for trials in (2, 12):
        records = searched(space, told, trials)
        state = searching(SPEC, space, records)
        left = proposer.regret_bound(state, told)
        untried = [space.table.plan(row) for row in np.flatnonzero(state.untried)]
        fitting = [rate(plan) for plan in untried if share_of_limit(plan) <= 0.95]
        assert left is not None
        assert max(fitting) <= left * best_of(records)
        bounds.append(left)

    assert 1 <= bounds[1] < bounds[0]


def test_the_search_knows_what_trials_of_one_plan_differ_by(
    space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trials of a plan that are 20 % apart: each measurement may be off by as much."""
    records = searched(space, prospects_of(space), 4)
    again = make_record(4, records[1].plan, make_measured(1.2 * rate(records[1].plan)))
    again = replace(again, reason=Remeasures(trial=1))
    told = list[list[float]]()

    def leaders(_: Search, observations: list[Observation], *_a: object, **_k: object) -> list[int]:
        told.append([math.hypot(one.rate_noise, one.drift) for one in observations if one.measured])
        return []

    monkeypatch.setattr(Search, "leaders", leaders)
    proposer = PlimsollProposer(space, SPEC, seed=0)
    for known in (records, [*records, again]):
        proposer.leaders(searching(SPEC, space, known), prospects_of(space), 3)

    before, after = told
    assert max(before) < 0.01
    # the square of the difference halved, and the usual percent as one observation more
    expected = math.sqrt((math.log(1.2) ** 2 / 2 + 0.01**2) / 2)
    assert after == pytest.approx([expected] * 5)
