"""Figures derived from the state of a sweep."""

from __future__ import annotations

import random
import statistics
from dataclasses import replace

import pytest

from orchestrator.core.objective import speedup
from orchestrator.report.sweep_tables import (
    baseline_record,
    closest_record,
    memory_excess,
    progress,
)
from tests.orchestrator.records import BEGAN, make_state
from tests.outcomes import make_measured, make_oom


def test_the_interval_of_a_ratio_holds_what_sampling_gives() -> None:
    fast, slow = (make_measured(rate) for rate in (50.0, 20.0))
    state = make_state([slow, fast])
    gain = speedup(state.best, baseline_record(state))
    random.seed(0)
    sigma = 0.015 / 1.96  # of both, relative: the interval is 95 %
    drawn = [50 * random.gauss(1, sigma) / (20 * random.gauss(1, sigma)) for _ in range(20_000)]

    cuts = statistics.quantiles(drawn, n=40)  # 2.5 % apart

    assert gain is not None
    assert (gain.low, gain.high) == pytest.approx((cuts[0], cuts[-1]), rel=0.002)


def test_time_left_follows_the_median_trial_within_the_budget() -> None:
    state = make_state([make_measured()] * 4)

    assert progress(state, BEGAN + 60).left_seconds == 20 * 6.0
    assert progress(state, BEGAN + 590).left_seconds == 10.0
    assert progress(make_state([]), BEGAN).left_seconds is None


def test_time_left_is_shared_by_trials_that_run_at_the_same_time() -> None:
    one = make_state([make_measured()] * 4)
    pairs = tuple(
        replace(record, started_at=BEGAN + 6 * (at // 2), ended_at=BEGAN + 6 * (at // 2) + 6)
        for at, record in enumerate(one.records)
    )

    assert progress(replace(one, records=pairs), BEGAN + 12).left_seconds == 20 * 6.0 / 2


def test_nearest_is_the_least_over_the_line() -> None:
    state = make_state([make_oom(1.3), make_oom(None), make_measured(40, 0.97), make_oom(1.1)])

    near = closest_record(state.records, 0.05)

    assert near is not None
    assert near.number == 2
    assert memory_excess(near, 0.05) == pytest.approx(0.97 / 0.95 - 1, abs=1e-6)
