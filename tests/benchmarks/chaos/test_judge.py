"""What a sweep is found guilty of, as tables."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.chaos.judge import (
    LATE_SECONDS,
    Injected,
    Line,
    Verdict,
    beginnings,
    judge,
    obeyed,
)
from orchestrator.core.records import Record
from search_spaces.trial import Outcome, TimedOut
from tests.orchestrator.core.values import state_after
from tests.outcomes import make_measured, make_oom

TRIALS = state_after([make_measured(10.0), make_measured(20.0), make_oom()]).records


def line(record: Record, rate: float, *, validation: bool = False) -> Line:
    return Line(
        number=record.number,
        plan=record.plan.key,
        validation=validation,
        samples_per_second=rate,
        at=record.ended_at,
    )


JOURNAL = [line(TRIALS[0], 10.0), line(TRIALS[1], 20.0)]
OOM = Injected(kind="past_the_budget", at=TRIALS[2].started_at, ends=False)
KILL = Injected(kind="driver_killed", at=TRIALS[1].ended_at, ends=True)


def with_outcome(number: int, outcome: Outcome) -> list[Record]:
    return [replace(r, outcome=outcome) if r.number == number else r for r in TRIALS]


def test_what_agrees_is_clean() -> None:
    verdict = judge(TRIALS, JOURNAL, [OOM])

    assert verdict == Verdict(lost=(), duplicated=(), invented=(), unexplained=())
    assert verdict.clean
    assert judge(TRIALS, [*JOURNAL, line(TRIALS[1], 99.0, validation=True)], [OOM]).clean


def test_what_was_dropped_is_lost() -> None:
    verdict = judge([TRIALS[0], TRIALS[2]], JOURNAL, [OOM])

    assert verdict.lost == ("trial 1 was measured, and the study has no outcome of it",)
    assert not verdict.clean


def test_what_went_with_a_process_is_not_lost_but_only_once_for_each() -> None:
    assert judge([TRIALS[0], TRIALS[2]], JOURNAL, [OOM, KILL]).clean
    far = replace(KILL, at=KILL.at + LATE_SECONDS + 1)
    assert judge([TRIALS[0], TRIALS[2]], JOURNAL, [OOM, far]).lost
    harmless = replace(KILL, kind="driver_stopped", ends=False)
    assert judge([TRIALS[0], TRIALS[2]], JOURNAL, [OOM, harmless]).lost
    assert len(judge([TRIALS[2]], JOURNAL, [OOM, KILL]).lost) == 1


def test_what_ended_after_its_deadline_is_not_lost() -> None:
    late = TimedOut(deadline_seconds=1.0, detail="so")
    stop = Injected(kind="rank_stopped", at=TRIALS[1].started_at, ends=False)

    assert judge(with_outcome(1, late), JOURNAL, [OOM, stop]).clean
    assert judge(with_outcome(1, make_oom()), JOURNAL, [OOM, stop]).lost


def test_a_plan_with_two_outcomes_is_duplicated() -> None:
    twice = replace(TRIALS[0], number=7)
    verdict = judge([*TRIALS, twice], [*JOURNAL, line(twice, 10.0)], [OOM])

    assert verdict.duplicated == (f"plan {TRIALS[0].plan.key} has 2 outcomes",)


@pytest.mark.parametrize("journal", [JOURNAL[:1], [JOURNAL[0], line(TRIALS[1], 20.5)]])
def test_what_no_worker_measured_is_invented(journal: list[Line]) -> None:
    assert judge(TRIALS, journal, [OOM, KILL]).invented == (
        "no worker measured trial 1 at 20 samples/s",
    )


def test_a_failure_without_a_fault_is_unexplained() -> None:
    after = replace(OOM, at=TRIALS[2].ended_at + 1)

    assert judge(TRIALS, JOURNAL, []).unexplained == (
        "trial 2 ended as out_of_memory, and no fault was injected",
    )
    assert judge(TRIALS, JOURNAL, [after]).unexplained


def test_an_order_is_a_fault_of_the_moment_when_it_is_taken(tmp_path: Path) -> None:
    order = tmp_path / "nan-0a.order"
    order.touch()
    os.utime(order, (0, 0))  # given long ago, and not taken
    assert not obeyed(tmp_path)
    before = time.time() - 1  # the clock of files is coarse

    order.rename(order.with_suffix(".taken"))

    (fault,) = obeyed(tmp_path)
    assert (fault.kind, fault.ends) == ("nan", False)
    assert before <= fault.at <= time.time()


def test_a_trial_that_the_next_driver_closed_is_explained_by_what_met_it_before() -> None:
    """Its record has the time of its end alone."""
    closed = replace(TRIALS[2], started_at=TRIALS[2].ended_at)
    long_before = closed.ended_at - 3 * LATE_SECONDS
    kill = replace(KILL, at=long_before + 1)
    event = datetime.fromtimestamp(long_before, UTC).isoformat().replace("+00:00", "Z")
    log = ["a line of Ray's", f'{{"version":1,"time":"{event}","event":"trial_started","trial":2}}']

    records = [*TRIALS[:2], closed]
    assert judge(records, JOURNAL, [kill], beginnings(log)).clean
    assert judge(records, JOURNAL, [kill]).unexplained
    early = replace(kill, at=long_before - LATE_SECONDS - 1)
    assert judge(records, JOURNAL, [early], beginnings(log)).unexplained
