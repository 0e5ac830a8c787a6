"""The share of the groups' time in which trials ran, by hand."""

from __future__ import annotations

import pytest

from benchmarks.search_under_ray import busy_share


def test_only_what_was_slept_between_the_two_moments_counts() -> None:
    """Two groups from 10, when the second has a trial, to 40, when the last one is handed out."""
    slept = [(0.0, 20.0), (10.0, 30.0), (22.0, 38.0), (31.0, 50.0), (40.5, 60.0)]

    # one group 10 to 20 and 22 to 38, the other 10 to 30 and 31 to 40
    assert busy_share(slept, [0, 9, 21, 30, 40], 2) == pytest.approx((26 + 29) / 60)


def test_groups_that_always_have_a_trial_are_busy() -> None:
    slept = [(0.0, 10.0), (0.0, 12.0), (10.0, 30.0), (12.0, 25.0)]

    assert busy_share(slept, [0, 0, 10, 12], 2) == 1
