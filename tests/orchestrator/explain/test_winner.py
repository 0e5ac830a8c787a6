"""Explanations of the best plan: ratios worked out by hand, and forecasts of untried plans."""

from __future__ import annotations

import pytest

from orchestrator.explain.winner import BestExplanation, explain_best
from orchestrator.report.explain_text import baseline_sentence
from tests.orchestrator.explain.values import (
    a_ground,
    a_plan,
    a_state,
    measured,
    out_of_memory,
)

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


def test_the_baseline_is_compared_with_each_knob_alone() -> None:
    won = explained()
    first = won.baseline
    assert first is not None

    assert (won.trial.number, won.trial.plan) == (1, WINNER)
    assert (first.trial, first.measured, first.equal) == (0, True, False)
    assert first.ratio is not None
    assert first.ratio.value == pytest.approx(2.5)
    half = 2**0.5 * 0.015  # two of 1.5 %, in quadrature
    assert first.ratio.low == pytest.approx(2.5 * (1 - half))
    stage, micro = first.knob_effects
    # zero_stage 2 with micro-batch 4 was not tried: both are forecast
    assert (stage.change.knob, stage.trial) == ("zero_stage", None)
    assert stage.ratio is not None
    assert stage.peak_bytes is not None
    assert stage.peak_bytes < 0  # ZeRO-3 holds less
    # micro-batch 1 with ZeRO-3 was, as trial 2: 50 / 25 samples/s, 60 - 30 GiB
    assert micro.trial == 2
    assert micro.ratio is not None
    assert micro.ratio.value == pytest.approx(2.0)
    assert micro.peak_bytes == 30 * 2**30


def test_a_baseline_that_was_not_measured_is_forecast() -> None:
    won = explained(((BASELINE, out_of_memory(90)), *TRIED[1:]))
    first = won.baseline
    assert first is not None

    assert (first.trial, first.measured) == (0, False)
    assert first.ratio is not None
    assert "(forecast; its trial: out of device memory" in baseline_sentence(first)
