"""The end of a search, as a table: the state, the time, and the reason."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.budget import baseline_is_due, not_worth_it, reason_to_end
from orchestrator.core.reasons import (
    AllTried,
    BudgetSpent,
    ChecksMachine,
    NoImprovement,
    NotWorthIt,
    StopReason,
)
from orchestrator.core.state import advance
from search_spaces.trial import Outcome
from tests.orchestrator.core.values import started, state_after
from tests.orchestrator.records import BEGAN, make_plan
from tests.outcomes import make_measured, make_oom

MINUTE = 60.0
GOOD, WORSE, TIGHT = make_measured(40.0), make_measured(30.0), make_measured(50.0, 0.97)


def test_the_plan_that_one_would_start_with_goes_first() -> None:
    state = state_after()

    assert baseline_is_due(state)
    assert not baseline_is_due(advance(state, started(0, state.space.baseline)))


@pytest.mark.parametrize(
    ("outcomes", "budget", "now", "reason"),
    [
        ([GOOD] * 3, {"trials": 3}, 0.0, BudgetSpent(limit="trials", amount=3)),
        ([GOOD] * 2, {"trials": 3}, 0.0, None),
        ([], {"minutes": 2}, 2 * MINUTE, BudgetSpent(limit="minutes", amount=2)),
        ([], {"minutes": 2}, 2 * MINUTE - 1, None),
        ([GOOD, WORSE, WORSE], {"patience": 2}, 0.0, NoImprovement(trials=2)),
        ([GOOD, WORSE, TIGHT], {"patience": 2}, 0.0, NoImprovement(trials=2)),
        ([WORSE, WORSE, GOOD], {"patience": 2}, 0.0, None),
        ([make_oom()] * 5, {"patience": 2}, 0.0, None),  # there is none to be better than
        ([GOOD] + [WORSE] * 9, {"patience": None}, 0.0, None),
        # each took 6 s on two ranks
        ([GOOD] * 3, {"gpu_hours": 0.01}, 0.0, BudgetSpent(limit="gpu_hours", amount=0.01)),
    ],
)
def test_when_it_is_enough(
    outcomes: Sequence[Outcome], budget: dict[str, Any], now: float, reason: StopReason | None
) -> None:
    state = state_after(outcomes, budget=budget)

    assert reason_to_end(state, BEGAN + now) == reason


def test_a_space_that_was_tried_ends_the_search() -> None:
    state = state_after([GOOD])
    plans = len(state.space.candidates)
    for number, plan in enumerate(state.space.candidates):
        state = advance(state, started(number, plan))

    reason = reason_to_end(replace(state, running=()), BEGAN)

    assert reason == AllTried(plans=plans)


def test_what_is_under_way_counts_towards_the_trials() -> None:
    state = advance(state_after([GOOD], budget={"trials": 2}), started(1, make_plan()))

    assert reason_to_end(state, BEGAN) == BudgetSpent(limit="trials", amount=2)


def test_a_check_of_the_machine_that_is_under_way_is_no_trial_of_the_budget() -> None:
    check = replace(started(1, make_plan()), reason=ChecksMachine(trial=0, suspect=0))
    state = advance(state_after([GOOD], budget={"trials": 2}), check)

    assert reason_to_end(state, BEGAN) is None


@pytest.mark.parametrize(
    ("hours", "measured", "saving", "seconds", "dear"),
    [
        (10.0, 3, 0.001, 30.0, False),  # 36 s of ten hours
        (10.0, 3, 0.001, 40.0, True),
        (None, 3, 0.0, 40.0, False),
        (10.0, 2, 0.001, 40.0, False),  # too little is known
        (10.0, 3, float("inf"), 40.0, False),  # nothing feasible is known
    ],
)
def test_a_trial_must_save_more_than_it_takes(
    hours: float | None, measured: int, saving: float | None, seconds: float | None, dear: bool
) -> None:
    state = state_after([GOOD] * measured, budget={"trials": 9, "training_hours": hours})
    reason = not_worth_it(state, saving, seconds)

    expected = NotWorthIt(
        trial_seconds=40.0, saved_seconds=pytest.approx(36.0), training_hours=10.0
    )
    assert reason == (expected if dear else None)
