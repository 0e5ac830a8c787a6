"""Scales of values: order, inverse and noise."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.study import StudyDirection

from orchestrator.search.plimsoll_sampler import ValueScale

VALUES = st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=1, max_size=20)
DIRECTIONS = st.sampled_from((StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE))


@given(VALUES, DIRECTIONS)
def test_better_values_are_higher_and_come_back(
    values: list[float], direction: StudyDirection
) -> None:
    scale = ValueScale.of(values, direction)
    scaled = [scale.scaled(value) for value in values]

    in_order = sorted(values, reverse=direction == StudyDirection.MINIMIZE)
    assert [scale.scaled(value) for value in in_order] == sorted(scaled)
    for value in values:
        assert scale.value(scale.scaled(value)) == pytest.approx(value, rel=1e-6, abs=1e-6)


def test_values_above_0_are_logarithms() -> None:
    assert ValueScale.of([1.0, 10.0], StudyDirection.MAXIMIZE).scaled(10.0) == math.log(10)
    assert ValueScale.of([1.0, 10.0], StudyDirection.MINIMIZE).scaled(10.0) == -math.log(10)


@pytest.mark.parametrize("values", [[2.0, 3.0], [-1.0, 0.0, 5.0], [0.0, 0.0]])
@pytest.mark.parametrize("at", [3.0, -4.0])
def test_noise_is_what_a_small_change_of_the_value_does(values: list[float], at: float) -> None:
    scale = ValueScale.of(values, StudyDirection.MAXIMIZE)
    at = abs(at) if scale.spread is None else at

    moved = abs(scale.scaled(at * 1.001) - scale.scaled(at)) / 0.001

    assert scale.noise(at, 0.05) == pytest.approx(0.05 * moved, rel=0.01)
