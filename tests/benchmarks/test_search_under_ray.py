"""The share of the groups' time in which trials ran, by hand."""

from __future__ import annotations

import pytest

from benchmarks.search_under_ray import all_up, busy_share
from orchestrator.core.inputs import TrialFinished
from search_spaces.trial import Cancelled, Stopped


def naps(*told: tuple[int, float, float]) -> list[TrialFinished]:
    """Group, begin and end of each."""
    return [
        TrialFinished(
            group=f"group-{group}",
            number=number,
            validation=False,
            outcome=Cancelled(cause=Stopped(by="the test")),
            fingerprint=None,
            started_at=began,
            ended_at=ended,
        )
        for number, (group, began, ended) in enumerate(told)
    ]


def test_only_what_was_slept_between_the_two_moments_counts() -> None:
    """Two groups from 10, when the second has a trial, to 40, when the last one is handed out."""
    slept = naps((1, 0, 8), (1, 9, 20), (2, 10, 30), (1, 22, 38), (2, 31, 50), (1, 40.5, 60))

    # one group 10 to 20 and 22 to 38, the other 10 to 30 and 31 to 40
    assert all_up(slept) == 10
    assert busy_share(slept, [0, 8, 9, 21, 30, 40]) == pytest.approx((26 + 29) / 60)


def test_groups_that_always_have_a_trial_are_busy() -> None:
    slept = naps((1, 0, 10), (2, 0, 12), (1, 10, 30), (2, 12, 25))

    assert busy_share(slept, [0, 0, 10, 12]) == 1
