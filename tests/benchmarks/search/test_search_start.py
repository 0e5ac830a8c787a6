"""The benchmark of starts far apart: pairs, means and bootstrap intervals."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from benchmarks.search_start import TRIALS, compared, figures, races, summary
from tests.benchmarks.search.toys import toy_surface


def test_intervals_of_one_surface_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    near, far = rng.normal(1.0, 0.2, (1, 50)), rng.normal(0.9, 0.3, (1, 50))

    found = compared(near, far)

    reference = stats.bootstrap(
        ((far - near)[0],), np.mean, method="percentile", n_resamples=4000, rng=1
    ).confidence_interval
    assert found["difference"] == pytest.approx(float((far - near).mean()), abs=1e-4)
    assert found["interval_seeds"] == pytest.approx([reference.low, reference.high], abs=0.01)


def test_surfaces_that_differ_widen_the_interval_for_others_like_them() -> None:
    shift = np.array([[-0.4], [0.0], [0.4], [0.1]])
    near = np.ones((4, 30))

    found = compared(near, near + shift)

    assert found["interval_seeds"] == pytest.approx([0.025, 0.025])
    assert found["interval_surfaces"][0] < -0.1
    assert found["interval_surfaces"][1] > 0.15


def test_both_searches_of_a_race_begin_alike() -> None:
    """They draw the same first candidate; the second one lies far away with a start far apart."""
    candidates = [{"micro_batch": float(at)} for at in range(1, 13)]
    surface = toy_surface(candidates, [float(at) for at in range(1, 13)])

    near, far = races(surface, range(6))

    assert [one.regret[0] for one in near] == [one.regret[0] for one in far]
    assert all(len(one.regret) <= TRIALS for one in (*near, *far))
    found = summary({"a": {"toy": (near, far)}})
    assert (found["seeds"], found["surfaces"]) == (6, 1)
    assert found["all"] == found["a"] == figures({"toy": (near, far)})
    assert found["by_surface"]["toy"] == found["all"]["regret_at_5"]
