"""The interval of the mean: against scipy, explicit covariances and hand-computed cases."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from workers.measure.interval import (
    MIN_WINDOWS_FOR_DEPENDENCE,
    effective_windows,
    is_precise,
    mean_bounds,
    mean_estimate,
    stall_seconds,
)

SECONDS = st.lists(st.floats(0.01, 100), min_size=1, max_size=60)
FEW = st.lists(st.floats(1, 2), min_size=4, max_size=MIN_WINDOWS_FOR_DEPENDENCE - 1)


@given(FEW)
def test_few_windows_have_students_interval_of_the_logarithm(seconds: list[float]) -> None:
    estimate = mean_estimate(seconds)

    mean, count = float(np.mean(seconds)), len(seconds)
    half_width = t.ppf(0.975, count - 1) * np.std(seconds, ddof=1) / math.sqrt(count)
    assert estimate.value == pytest.approx(mean)
    assert estimate.low == pytest.approx(mean * math.exp(-half_width / mean))
    unseen = 0.1 * min(3 / count, 1)
    assert estimate.high == pytest.approx(mean * (math.exp(half_width / mean) + unseen))


@pytest.mark.parametrize(
    ("count", "share"), [(1, 0.1), (3, 0.1), (6, 0.05), (12, 0.025), (60, 0.005)]
)
def test_a_steady_series_may_have_missed_a_stall(count: int, share: float) -> None:
    estimate = mean_estimate([0.25] * count)

    assert (estimate.value, estimate.low) == (0.25, 0.25)
    assert estimate.high == pytest.approx(0.25 * (1 + share))


@given(SECONDS, st.data())
def test_the_mean_is_all_seconds_over_all_steps(seconds: list[float], data: st.DataObject) -> None:
    counts = st.lists(st.integers(1, 50), min_size=len(seconds), max_size=len(seconds))
    steps = data.draw(counts)

    estimate = mean_estimate(seconds, steps)

    total = sum(value * count for value, count in zip(seconds, steps, strict=True))
    assert estimate.value == pytest.approx(total / sum(steps))
    assert 0 < estimate.low <= estimate.value < estimate.high < math.inf


def test_alternating_windows_count_as_weakly_dependent() -> None:
    """The autocorrelation is -15/16, cut to 0; the margin is 1.3 / 4."""
    effective = effective_windows(np.array([1.0, -1.0] * 8))

    assert float(effective) == pytest.approx(_by_covariance(16, 0.325))


def test_a_rising_series_counts_as_few() -> None:
    """The autocorrelation of 16 windows in two levels is 13 / 16; (13 + 1) / 12 is above 1."""
    effective = effective_windows(np.array([-1.0] * 8 + [1.0] * 8))

    assert float(effective) == pytest.approx(_by_covariance(16, 0.99))
    assert effective < 1.1


def _by_covariance(count: int, correlation: float) -> float:
    """Effective windows by the explicit correlation matrix of an AR(1) process."""
    lags = np.abs(np.subtract.outer(np.arange(count), np.arange(count)))
    return float(count**2 / (correlation**lags).sum())


@given(st.integers(0, 2**32 - 1))
def test_dependence_widens_the_interval(seed: int) -> None:
    draw = random.Random(seed)
    shuffled = [draw.uniform(1.0, 1.1) for _ in range(40)]

    assert (
        mean_estimate(sorted(shuffled)).relative_half_width
        > mean_estimate(shuffled).relative_half_width
    )


def test_many_series_have_the_bounds_of_each_alone() -> None:
    rows = np.random.default_rng(1).lognormal(0, 0.2, (5, 30))

    bounds = np.stack(mean_bounds(rows, np.ones_like(rows)), axis=1)

    for row, bound in zip(rows, bounds, strict=True):
        alone = mean_estimate(row.tolist())
        assert tuple(bound) == pytest.approx((alone.value, alone.low, alone.high))


def test_halves_that_differ_need_more_windows() -> None:
    """The same eight values; both intervals are narrower than 3 %, the halves differ by 2 %."""
    level = [1.0] * 4 + [1.02] * 4
    mixed = [1.0, 1.02] * 4

    assert mean_estimate(level) == mean_estimate(mixed)
    assert mean_estimate(level).relative_half_width < 0.03
    assert not is_precise(np.asarray(level), np.ones(8), 0.03)
    assert is_precise(np.asarray(mixed), np.ones(8), 0.03)


def test_a_stall_is_slower_than_all_noise() -> None:
    noisy = [1.0, 1.02, 0.98, 1.01, 0.99, 1.03, 0.97]

    assert stall_seconds(noisy, [2] * 7) == 0
    assert stall_seconds([*noisy, 1.5], [*[2] * 7, 3]) == pytest.approx(3 * (1.5 - 1.005))
    assert stall_seconds([0.25], [1]) == 0


@pytest.mark.parametrize("windows", [6, 10, 40])
def test_windows_of_unequal_work_are_told_from_noise(windows: int) -> None:
    rng = np.random.default_rng(windows)
    excess = rng.lognormal(0, 1.0, (4000, windows)) - math.exp(0.5)
    seconds = 1.0 + 0.05 * excess + rng.normal(0, 0.01, excess.shape)
    ones = np.ones(excess.shape)
    mean, low, _ = mean_bounds(seconds, ones, None, excess)
    _, plain_low, _ = mean_bounds(seconds, ones)

    # the upper end also allows for stalls, the lower one is that of 95 %: 2.5 % lie above 1
    assert 0.005 < (low > 1.0).mean() < 0.035
    assert mean.mean() == pytest.approx(1.0, abs=1e-3)
    assert (mean - low).mean() < 0.6 * (mean - plain_low).mean()
