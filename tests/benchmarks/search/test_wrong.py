"""Forecasts spoilt on purpose, and what our search is told."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.search.competitors.known import COMPETITORS, WRONG
from benchmarks.search.competitors.ours import Plimsoll, memory_times
from benchmarks.search.surfaces import Surface, Trial
from tests.benchmarks.search.toys import order_of, toy_surface


@pytest.fixture
def surface() -> Surface:
    candidates = [{"micro_batch": float(at)} for at in range(1, 21)]
    return toy_surface(
        candidates,
        [float(at) for at in range(1, 21)],
        log_rate=np.log(np.arange(1.0, 21.0)).tolist(),
        log_share=[-2.0] * 20,
    )


def test_only_the_true_forecast_begins_with_the_best(surface: Surface) -> None:
    first = {
        name: [order_of(surface, make(surface, seed), 1)[0]["micro_batch"] for seed in range(5)]
        for name, make in {**COMPETITORS, **WRONG}.items()
        if name.startswith("plimsoll")
    }

    assert set(first["plimsoll"]) == {20.0}
    assert len(set(first["plimsoll without forecasts"])) > 1
    assert len(set(first["plimsoll, times shuffled"])) > 1


def test_memory_that_is_thought_too_much_is_avoided(surface: Surface) -> None:
    near = toy_surface(
        surface.candidates,
        [float(at) for at in range(1, 21)],
        log_rate=np.log(np.arange(1.0, 21.0)).tolist(),
        log_share=[-2.0] * 10 + [float(np.log(0.75))] * 10,
    )
    low = Plimsoll(memory_times(near, 0.7), 0)
    high = WRONG["plimsoll, memory 30 % high"](near, 0)

    assert order_of(near, low, 1)[0]["micro_batch"] == 20.0
    assert order_of(near, high, 1)[0]["micro_batch"] == 10.0


def test_peaks_and_wants_are_told(surface: Surface) -> None:
    competitor = Plimsoll(surface, 0)
    competitor.tell(0, Trial(rate=2.0, log_share=-0.5, seconds=1.0))
    competitor.tell(1, Trial(rate=None, log_share=0.3, seconds=1.0))
    competitor.tell(2, Trial(rate=None, log_share=None, seconds=1.0))
    measured, wanted, unknown = competitor._observations

    assert (measured.log_share, measured.fitted, measured.ran_out) == (-0.5, True, False)
    assert measured.log_rate == pytest.approx(np.log(2.0))
    assert measured.rate_noise == pytest.approx(np.log(1.025) / 1.96)
    assert (wanted.log_share, wanted.ran_out) == (0.3, True)
    assert (unknown.log_share, unknown.ran_out) == (0.0, True)


def test_the_noise_of_a_trial_is_told_by_its_own_interval(surface: Surface) -> None:
    """The product cannot know how much repeats of a surface differ."""
    competitor = Plimsoll(replace(surface, noise=0.3), 0)
    competitor.tell(0, Trial(rate=2.0, log_share=None, seconds=1.0, half_width=0.1))
    competitor.tell(1, Trial(rate=2.0, log_share=None, seconds=1.0, half_width=0.0))
    wide, exact = competitor._observations

    assert wide.rate_noise == pytest.approx(np.log(1.1) / 1.96)
    assert exact.rate_noise == 0.005
