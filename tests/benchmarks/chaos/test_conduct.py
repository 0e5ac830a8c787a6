"""Drivers end as their faults explain, attempts in time, and the answer is about the fastest."""

from dataclasses import replace

import pytest

from benchmarks.chaos.conduct import beyond_budget, slow_attempts, wrong_answer, wrong_exits
from orchestrator.core.records import Record
from tests.orchestrator.core.values import state_after
from tests.outcomes import make_measured
from tests.rigs.judge import Line


@pytest.mark.parametrize(
    ("codes", "faults"),
    [
        ([0], [(0, "rank_killed")]),
        ([-9, 0], [(0, "driver_killed")]),
        ([143, 0], [(0, "driver_ended")]),
        ([75, 0], [(0, "head_killed")]),
        ([-9, 75, 0], [(0, "few_descriptors")]),
        ([75, 0], [(0, "postgres_hangs"), (0, "rank_slowed")]),
        ([-9, 75, 0], [(0, "mlflow_is_late"), (0, "driver_killed")]),
        ([75, 0], [(0, "mlflow_is_late"), (0, "driver_starting")]),
        ([-9, 2, 0], [(0, "mlflow_asks_to_log_in"), (0, "driver_killed")]),
    ],
)
def test_these_ends_are_right(codes: list[int], faults: list[tuple[int, str]]) -> None:
    assert list(wrong_exits(codes, faults)) == []


@pytest.mark.parametrize(
    ("codes", "faults"),
    [
        ([1, 0], [(0, "rank_killed")]),
        ([-9, 0], [(0, "rank_killed")]),
        ([143, 0], [(0, "driver_killed")]),
        ([-15, 0], [(0, "driver_ended")]),
        ([75, 0], [(0, "clock_jumps")]),
        ([75, 0], [(0, "mlflow_is_late")]),
        ([-9, 2, 0], [(0, "mlflow_is_late"), (0, "driver_killed")]),
        ([75, 0], []),
        ([70, 0], [(0, "disk_fails")]),
        ([0, 75, 0], [(2, "head_killed")]),
    ],
)
def test_these_are_wrong(codes: list[int], faults: list[tuple[int, str]]) -> None:
    assert len(list(wrong_exits(codes, faults))) == 1


def event(kind: str, minute: int, trial: int = 0) -> dict[str, object]:
    return {"event": kind, "trial": trial, "time": f"2026-01-01T00:{minute:02}:00Z"}


def test_an_attempt_that_takes_too_long_is_told_and_one_without_an_end() -> None:
    late = [event("trial_started", 0), event("trial_ended", 9)]
    assert list(slow_attempts(late)) == ["trial 0 took 540 s"]
    endless = [event("trial_started", 0, 1), event("sweep_ended", 1)]
    assert list(slow_attempts(endless)) == ["trial 1 never ended"]
    killed = [event("trial_started", 0), event("sweep_started", 9), event("sweep_ended", 10)]
    assert list(slow_attempts(killed)) == []


def records() -> tuple[list[Record], list[Line]]:
    """Two plans; the second one is twice as fast."""
    trials = list(state_after([make_measured(100.0), make_measured(200.0)]).records)
    return trials, [line(one, 100.0 * (one.number + 1)) for one in trials]


def line(record: Record, rate: float) -> Line:
    return Line(
        number=record.number, plan=record.plan.key, validation=False, samples_per_second=rate
    )


def test_the_answer_is_about_the_fastest() -> None:
    trials, journal = records()

    assert list(wrong_answer({"trial": 1}, trials, journal)) == []
    assert len(list(wrong_answer({"trial": 0}, trials, journal))) == 1
    assert len(list(wrong_answer(None, trials, journal))) == 1
    assert len(list(wrong_answer({"trial": 7}, trials, journal))) == 1


def test_no_more_trials_than_allowed() -> None:
    (trial, _), _ = records()

    assert list(beyond_budget([trial] * 20)) == []
    assert len(list(beyond_budget([replace(trial, number=one) for one in range(21)]))) == 1
