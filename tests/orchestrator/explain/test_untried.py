"""Explanations of untried plans: each verdict with its reasons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import BudgetSpent
from orchestrator.explain.context import ForecastContext
from orchestrator.explain.untried import UntriedExplanation, ValueNotSearched, explain_untried
from orchestrator.forecast.table import forecast_table
from orchestrator.report.explain_text import untried_reasons
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB
from search_spaces.trial import Outcome
from tests.orchestrator.explain.values import a_ground, a_plan, a_state, measured, out_of_memory
from tests.orchestrator.forecast.values import a_calibration, a_footprint

TRIED = (
    (a_plan(zero_stage=2), measured(20.0, 40)),
    (a_plan(), measured(50.0, 30)),  # the answer
)
END = SweepEnded(reason=BudgetSpent(limit="trials", amount=3), at=0.0)


def grounded(
    tried: Sequence[tuple[Plan, Outcome]] = TRIED, limit_gib: float = 80, **changes: Any
) -> ForecastContext:
    ground = a_ground(replace(a_state(tried), **changes))
    request = replace(ground.forecasts.request, limit_bytes=int(limit_gib * GIB))
    sized = forecast_table(request, 8, a_footprint, a_calibration())
    return replace(ground, forecasts=sized)


def told(asked: dict[str, Any], ground: ForecastContext) -> UntriedExplanation:
    return explain_untried(asked, ground)


def reasons(found: UntriedExplanation, ground: ForecastContext) -> list[str]:
    return list(untried_reasons(found, ground.state))


def test_what_was_tried_names_its_trial() -> None:
    found = told({"zero_stage": 2}, grounded())

    assert (found.verdict, found.trial, found.like) == ("tried", 0, 1)


@pytest.mark.parametrize(
    ("asked", "rule", "words"),
    [
        (
            {"micro_batch": 3},
            "global_batch_is_kept",
            "not a multiple of micro_batch 3 x data 8 = 24",
        ),
        ({"zero_stage": 1}, "zero_one_needs_deepspeed", "zero_stage 1 needs engine deepspeed"),
        ({"prefetch_mib": 10}, "knob_at_default", "must be 50"),
        ({"tensor": 16, "data": 1, "zero_stage": 0}, "cluster_has_room", "needs 16 ranks"),
    ],
)
def test_what_a_rule_forbids_names_it(asked: dict[str, Any], rule: str, words: str) -> None:
    found = told(asked, grounded())

    assert (found.verdict, found.rule) == ("ruled_out", rule)
    said = reasons(found, grounded())[0]
    assert words in said
    assert f"(rule: {rule.replace('_', ' ')})" in said


def test_what_is_not_searched_names_the_key() -> None:
    found = told({"checkpoint_ratio": 0.25, "batching": "padded"}, grounded())

    assert found.verdict == "not_in_the_space"
    (value,) = found.not_searched
    assert value == ValueNotSearched(knob="checkpoint_ratio", value=0.25, searched=(0.0, 0.5, 1.0))
    assert reasons(found, grounded()) == [
        "space.checkpoint_ratio does not include 0.25, only 0.0, 0.5, 1.0"
    ]
    assert found.expected is not None  # it could be: a forecast says what it would give
    # data follows from tensor, and is not what has to be named
    split = told({"tensor": 2}, grounded())
    assert split.not_searched == (ValueNotSearched(knob="tensor", value=2, searched=(1,)),)


def test_what_needs_no_less_than_a_plan_that_ran_out() -> None:
    lost = (a_plan(micro_batch=2), out_of_memory(90))
    ground = grounded((*TRIED, lost))
    found = told({"micro_batch": 4}, ground)

    assert (found.verdict, found.trial) == ("dominated", 2)
    assert "trial 2 ran out of memory" in reasons(found, ground)[0]


def test_what_is_not_expected_to_fit() -> None:
    peak = grounded().expected(a_plan(micro_batch=4))
    assert peak is not None
    gib = peak.forecast.peak_bytes.value / GIB

    above = told({"micro_batch": 4}, grounded(limit_gib=0.9 * gib))
    line = told({"micro_batch": 4}, grounded(limit_gib=1.02 * gib))
    near = told({"micro_batch": 4}, grounded(limit_gib=1.06 * gib))

    assert {one.verdict for one in (above, line)} == {"forecast_not_to_fit"}
    assert near.expected is not None
    assert near.expected.keeps_headroom == (near.verdict != "forecast_not_to_fit")
    words = f"it needs {gib:.1f} GiB per device and is"
    usable = f"likely to fit; usable are {0.95 * 0.9 * gib:.1f} of {0.9 * gib:.1f} GiB"
    assert reasons(above, grounded())[0].startswith(words)
    assert usable in reasons(above, grounded())[0]


def test_slower_by_forecast_and_not_reached() -> None:
    plan = a_plan(checkpoint_ratio=1.0)
    expected = grounded().expected(plan)
    assert expected is not None
    rate = expected.forecast.samples_per_second.value
    start = (a_plan(zero_stage=2), measured(1.0, 40))
    ahead = (start, (a_plan(), measured(2 * rate, 30)))
    behind = (start, (a_plan(), measured(rate / 2, 30)))

    slower = told({"checkpoint_ratio": 1.0}, grounded(ahead, ended=END))
    missed = told({"checkpoint_ratio": 1.0}, grounded(behind, ended=END))

    assert slower.verdict == "forecast_to_be_slower"
    assert slower.ratio is not None
    assert slower.ratio.value == pytest.approx(0.5)
    assert slower.ratio.low < 0.5 < slower.ratio.high
    speed, end = reasons(slower, grounded(ahead, ended=END))
    assert "its forecast speed is 0.50 x" in speed
    assert end == (
        "the sweep ended before this plan was reached, after 2 trials: the budget of 3 trials is"
        " used up"
    )
    assert missed.verdict == "not_reached"
    assert missed.ratio is not None
    assert missed.ratio.value == pytest.approx(2.0)
    assert reasons(missed, grounded(behind, ended=END))[-1] == end
