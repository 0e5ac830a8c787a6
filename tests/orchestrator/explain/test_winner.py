"""Explanations of the best plan: ratios worked out by hand, and forecasts of untried plans."""

import math

import pytest

from orchestrator.explain.winner import BestExplanation, explain_best
from orchestrator.report.explain_text import baseline_sentence
from search_spaces.plan import Plan
from search_spaces.trial import Outcome
from tests.orchestrator.explain.values import a_ground, a_plan, a_state, measured, out_of_memory

BASELINE = a_plan(zero_stage=2)
WINNER = a_plan(micro_batch=4)
TRIED = (
    (BASELINE, measured(20.0, 40)),
    (WINNER, measured(50.0, 60)),
    (a_plan(), measured(25.0, 30)),  # the winner with the baseline's micro-batch
    (a_plan(micro_batch=4, checkpoint_ratio=1.0), measured(49.5, 35)),  # equal
    (a_plan(micro_batch=2), measured(40.0, 45)),
    (a_plan(zero_stage=2, micro_batch=4, checkpoint_ratio=1.0), out_of_memory(90)),
)


def explained(tried: tuple = TRIED, with_forecasts: bool = True) -> BestExplanation:  # type: ignore[type-arg]
    state = a_state(tried)
    assert state.best is not None
    return explain_best(state, state.best, a_ground(state) if with_forecasts else None)


def test_the_baseline_is_compared_with_the_best_plan() -> None:
    won = explained()
    first = won.baseline
    assert first is not None

    assert (won.trial.number, won.trial.plan) == (1, WINNER)
    assert (first.trial, first.measured, first.equal) == (0, True, False)
    assert first.ratio is not None
    assert first.ratio.value == pytest.approx(2.5)
    half = 2**0.5 * 0.015  # two of 1.5 %, in quadrature
    assert first.ratio.low == pytest.approx(2.5 * (1 - half))


@pytest.mark.parametrize(
    ("tried", "with_forecasts", "path"),
    [
        (TRIED, True, [({"zero_stage"}, 2, True), ({"micro_batch"}, 1, True)]),
        (TRIED[:2], True, [({"micro_batch"}, None, False), ({"zero_stage"}, 1, False)]),
        (TRIED[:2], False, [({"micro_batch", "zero_stage"}, 1, True)]),
        (
            (*TRIED[:2], (a_plan(zero_stage=2, micro_batch=4), out_of_memory(90))),
            True,
            [({"zero_stage"}, None, False), ({"micro_batch"}, 1, False)],
        ),
    ],
    ids=["measured", "forecast", "no forecasts", "not through a failed trial"],
)
def test_one_knob_at_a_time_leads_to_the_best_plan(
    tried: tuple[tuple[Plan, Outcome], ...],
    with_forecasts: bool,
    path: list[tuple[set[str], int | None, bool]],
) -> None:
    baseline = explained(tried, with_forecasts).baseline
    assert baseline is not None
    steps = baseline.levers

    names = [{change.knob for change in step.changes} for step in steps]
    assert [
        (each, step.trial, step.measured) for each, step in zip(names, steps, strict=True)
    ] == path
    gains = [step.ratio.value for step in steps if step.ratio is not None]
    assert math.prod(gains) == pytest.approx(2.5)


def test_a_baseline_that_was_not_measured_is_forecast() -> None:
    won = explained(((BASELINE, out_of_memory(90)), *TRIED[1:]))
    first = won.baseline
    assert first is not None

    assert (first.trial, first.measured) == (0, False)
    assert first.ratio is not None
    assert "(forecast; its trial: out of device memory" in baseline_sentence(first)
