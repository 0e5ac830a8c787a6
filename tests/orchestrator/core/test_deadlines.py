"""Deadlines of trials: arithmetic by hand, and trials that must never be cut short."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.budget import trial_deadline_seconds
from orchestrator.core.state import SweepState
from search_spaces.plan import Plan
from tests.orchestrator.core.values import state_after
from tests.orchestrator.records import BEGAN, make_plan
from tests.outcomes import make_costs, make_expectation, make_measured

ROOMY = {"trial_seconds": 10_000, "minutes": 1_000}
OBJECTIVE = {"max_seconds": 20}


@pytest.mark.parametrize(
    ("trial_seconds", "minutes", "now", "deadline"),
    [
        (60, 10, 0.0, 60.0),  # the spec's
        (600, 5, 0.0, 300.0),  # no more than is left of the sweep
        (600, 5, 200.0, 100.0),
        (60, 5, 299.0, 30.0),  # the last one gets a chance
    ],
)
def test_deadline_of_a_trial(
    trial_seconds: float, minutes: float, now: float, deadline: float
) -> None:
    state = state_after(budget={"trial_seconds": trial_seconds, "minutes": minutes})

    assert trial_deadline_seconds(state, BEGAN + now) == pytest.approx(deadline)


def after_builds(*seconds: float, **sections: Any) -> SweepState:
    """Returns a state whose measured trials took these build times."""
    outcomes = [make_measured(costs=make_costs(build_seconds=taken)) for taken in seconds]
    return state_after(outcomes, **{"budget": ROOMY, "objective": OBJECTIVE, **sections})


def deadline(state: SweepState, plan: Plan | None = None, **expected: float) -> float:
    forecast = make_expectation(**expected)
    return trial_deadline_seconds(state, BEGAN, plan or make_plan(), forecast)


def test_a_forecast_sets_an_earlier_deadline() -> None:
    """A minute, 20 s of measured steps, and four times (2 s of building plus 3 steps of 6 s)."""
    state = after_builds(0.5, 2.0, 1.0)

    assert deadline(state, step=5.0, factor=1.2) == pytest.approx(60 + 20 + 4 * (2 + 3 * 6))


def test_the_step_of_the_longest_samples_has_its_time() -> None:
    """The longest samples take four times as long as the mean step of samples of varied length."""
    state, forecast = after_builds(2.0), make_expectation(step=5.0, factor=1.2)
    varied = replace(forecast, filled=0.25)

    assert trial_deadline_seconds(state, BEGAN, make_plan(), varied) == pytest.approx(
        60 + 20 + 4 * (2 + 3 * 6 / 0.25)
    )


def test_a_compiler_is_waited_for() -> None:
    compiled = make_plan(compile=True)
    state = after_builds(2.0)
    assert deadline(state, compiled, step=0.1) == 10_000

    took = make_measured(costs=make_costs(build_seconds=1.0, compile_seconds=50.0))
    known = replace(state.records[0], plan=compiled, outcome=took)
    state = replace(state, records=(*state.records, known))
    assert deadline(state, compiled, step=1.0, factor=1.0) == pytest.approx(80 + 4 * (51 + 3))
    tuned = replace(compiled, compile_mode="max-autotune-no-cudagraphs")
    assert deadline(state, tuned, step=1.0, factor=1.0) == 10_000  # it may compile for longer
    assert deadline(state, step=1.0, factor=1.0) == pytest.approx(80 + 4 * (2 + 3))


@given(
    step=st.floats(1e-4, 300.0),
    slower=st.floats(0.2, 4.0),
    build=st.floats(0.0, 300.0),
    max_seconds=st.floats(0.1, 600.0),
)
def test_no_honest_trial_is_cut_short(
    step: float, slower: float, build: float, max_seconds: float
) -> None:
    """Allows the worst step, steps for `max_seconds` and two beyond, all four times as slow."""
    state = after_builds(build, objective={"max_seconds": max_seconds})
    taken = slower * step
    needed = slower * build + taken + max_seconds + 2 * taken

    allowed = deadline(state, step=step, factor=1.0)

    assert allowed >= min(needed, state.spec.budget.trial_seconds)
