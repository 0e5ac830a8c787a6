"""Warm-up detection and the interval of the median, against hand-computed cases and coverage."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import quantile_test

from workers.measure.steady import median_estimate, warmup_length

NOISE = (1.00, 1.02, 0.99, 1.01, 0.98, 1.00, 1.03, 0.97, 1.00, 1.01)


def test_a_slow_start_is_warm_up() -> None:
    assert warmup_length((9.0, 3.0, 1.5, *NOISE)) == 3


def test_a_steady_series_keeps_nearly_all() -> None:
    assert warmup_length(NOISE) <= 2


def test_one_hiccup_in_the_middle_is_not_warm_up() -> None:
    assert warmup_length((*NOISE, 1.4, *NOISE)) <= 2


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=60))
def test_never_cuts_more_than_half(seconds: list[float]) -> None:
    assert 0 <= warmup_length(seconds) <= len(seconds) // 2


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # Conover, table A3: the ranks of a 95 % interval of the median (1 is the smallest)
    [(6, 1, 6), (8, 1, 8), (9, 2, 8), (12, 3, 10), (15, 4, 12), (20, 6, 15), (30, 10, 21)],
)
def test_the_interval_lies_between_the_tabled_ranks(count: int, low: int, high: int) -> None:
    estimate = median_estimate([float(rank) for rank in range(1, count + 1)])

    assert (estimate.low, estimate.high) == (low, high)


@given(st.lists(st.floats(0.001, 100), min_size=6, max_size=200))
def test_the_interval_is_that_of_scipy(seconds: list[float]) -> None:
    estimate = median_estimate(seconds)

    expected = quantile_test(seconds, p=0.5).confidence_interval(confidence_level=0.95)
    assert (estimate.low, estimate.high) == (expected.low, expected.high)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_too_few_observations_for_an_interval_of_95_percent_span_all(count: int) -> None:
    seconds = [float(number) for number in range(count)]

    estimate = median_estimate(seconds)

    assert (estimate.low, estimate.high) == (0.0, count - 1.0)
    # scipy's bounds are not a number there, or no order statistic
    bounds = quantile_test(seconds, p=0.5).confidence_interval(confidence_level=0.95)
    assert not all(math.isfinite(bound) for bound in bounds)


def test_the_interval_holds_the_median_in_19_of_20_cases() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(2000):
        seconds = [draw.expovariate(1.0) for _ in range(15)]  # skewed, as step times are
        estimate = median_estimate(seconds)
        held += estimate.low <= 0.6931 <= estimate.high  # ln 2

    assert held / 2000 >= 0.95


def test_no_observation_has_no_median() -> None:
    with pytest.raises(ValueError, match="at least one"):
        median_estimate([])
