"""Warm-up detection against hand-computed cases and the standard error rule."""

import random
import statistics

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from workers.measure.steady import warmup_length, warmup_lengths

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


def test_a_stall_in_the_first_half_takes_no_steady_steps_along() -> None:
    """The standard error is least after the stall, but eight of the nine before it are steady."""
    seconds = [*NOISE[:8], 4.0, *NOISE]

    errors = [statistics.pvariance(seconds[cut:]) / (19 - cut) for cut in range(10)]
    assert errors.index(min(errors)) == 9
    assert warmup_length(seconds) == 0
    assert warmup_length([9.0, 5.0, *seconds]) == 2


@given(st.integers(1, 9), st.integers(12, 40), st.integers(0, 2**32 - 1))
def test_the_cut_of_a_slow_start_is_that_of_the_standard_error(
    slow: int, steady: int, seed: int
) -> None:
    draw = random.Random(seed)
    seconds = [draw.uniform(2.0, 2.1) for _ in range(slow)]
    seconds += [draw.uniform(1.0, 1.1) for _ in range(steady)]
    errors = [
        statistics.pvariance(seconds[cut:]) / (len(seconds) - cut)
        for cut in range(len(seconds) // 2 + 1)
    ]
    if errors.index(min(errors)) == slow:
        assert warmup_length(seconds) == slow
    assert warmup_length(seconds) >= slow


@given(
    arrays(
        np.float64, st.tuples(st.integers(1, 5), st.integers(1, 30)), elements=st.floats(0.01, 10)
    )
)
def test_many_series_are_cut_as_each_alone(rows: NDArray[np.float64]) -> None:
    assert list(warmup_lengths(rows)) == [warmup_length(row.tolist()) for row in rows]
