"""Figures derived from the state of a sweep."""

from dataclasses import replace

import pytest

from orchestrator.core.budget import rank_hours
from orchestrator.report.sweep_tables import progress
from tests.orchestrator.records import BEGAN, make_spec, make_state
from tests.outcomes import make_measured


def test_time_left_follows_the_pace_of_trials_within_the_budget() -> None:
    state = make_state([make_measured()] * 4)

    assert progress(state, BEGAN + 24).left_seconds == 20 * 6.0
    assert progress(state, BEGAN + 590).left_seconds == 10.0
    assert progress(make_state([]), BEGAN).left_seconds is None
    assert progress(replace(state, resumed=4), BEGAN + 24).left_seconds is None


def test_gpu_hours_end_a_sweep_before_its_trials() -> None:
    state = make_state([make_measured()] * 4)
    used = rank_hours(state.records)
    spec = make_spec(budget={"gpu_hours": 1.5 * used})
    state = replace(state, spec=spec)

    assert progress(state, BEGAN + 24).left_seconds == pytest.approx(12.0)
