"""The benchmark of long sweeps: its figures of a process; a real sweep stays flat."""

from __future__ import annotations

import pytest

from benchmarks.long_run import growth, measure


def test_growth_is_that_after_a_tenth_of_the_way() -> None:
    samples = [(10, 100.0, 5, 2), (100, 200.0, 7, 3), (1000, 209.0, 8, 3)]

    found = growth(samples, 1000)

    assert found == {
        "from_trial": 100,
        "to_trial": 1000,
        "mib_at_first": 200.0,
        "mib_at_last": 209.0,
        "mib_per_thousand_trials": 10.0,
        "handles_at_first": 7,
        "handles_at_last": 8,
        "threads_at_first": 3,
        "threads_at_last": 3,
    }


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_sixty_trials_on_a_group_leave_nothing_open() -> None:
    found = measure(60, 10)

    assert found["outcomes"] == {"measured": 60}
    assert {name.split()[0] for name in found["processes"]} >= {
        "driver",
        "RayTrainWorker",
        "GroupChannel",
    }
    for name, process in found["processes"].items():
        assert process["handles_at_last"] <= process["handles_at_first"] + 2, (name, process)
        assert process["threads_at_last"] <= process["threads_at_first"] + 2, (name, process)
        assert process["mib_at_last"] <= process["mib_at_first"] + 30, (name, process)
