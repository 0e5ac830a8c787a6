"""Drivers that end at steps of persistence: the same command loses, doubles and blames nothing."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path

import pytest

from orchestrator.study.reader import load_records, load_state
from orchestrator.study.spool import SET_ASIDE_FILE, SPOOL_FILE
from orchestrator.tracking.events import events_file
from search_spaces.spec.failpoints import Step
from search_spaces.trial import Measured
from tests.orchestrator.event_lines import read_events
from tests.orchestrator.study.killed_drivers import (
    PASSES,
    PLANS,
    forge,
    journal_of,
    lives,
    spec_of,
)
from tests.orchestrator.study.values import NAME
from tests.rigs.judge import History, Injected, judge, struck

AWAY = 75  # the database was away for too long
INTERRUPTED = "study.open.after=kill:3"  # leaves a trial that the next driver has to end
STEPS = (
    *(Step.FILE_WRITE, Step.FILE_RENAME, Step.LINE_APPEND, Step.SPOOL_REMOVE, Step.EVENT_APPEND),
    *(Step.LOCK_TAKE, Step.LOCK_CONFIRM, Step.LOCK_BEAT, Step.LOCK_RELEASE),
    *(Step.STUDY_OPEN, Step.STUDY_CLOSE, Step.STUDY_WRITE, Step.STUDY_FAIL, Step.STUDY_KEEP),
)
# later in the sweep, where that is another situation: at this time that the step is reached
LATER = {
    Step.EVENT_APPEND: 13,
    Step.LOCK_CONFIRM: 11,
    Step.STUDY_OPEN: 3,
    Step.STUDY_CLOSE: 3,
    Step.STUDY_KEEP: 5,
}
FIRST = [f"{step}.{side}=kill:1" for step in STEPS for side in ("before", "after")]
SECOND = [f"{step}.{side}=kill:{LATER[step]}" for step in LATER for side in ("before", "after")]
# while a result is in the driver alone
IN_BETWEEN = (
    *("study.close.before", "study.write.", "line.append.before"),
    *("lock.confirm.", "lock.beat.", "event.append."),
)


@pytest.fixture(scope="module")
def forked() -> Iterator[subprocess.Popen[str]]:
    with forge() as process:
        yield process


def swept(forked: subprocess.Popen[str], folder: Path, *orders: str) -> list[int]:
    """Runs the same command until it ends well; returns the exit codes."""
    codes = [lives(forked, folder, *orders)]
    while codes[-1] and len(codes) < 6:
        codes.append(lives(forked, folder, *orders))
    return codes


def strikes(folder: Path, events: Sequence[dict[str, object]]) -> list[Injected]:
    """Returns the kills, each with the attempts that were under way."""
    found = []
    for file in (folder / PASSES).glob("*.struck"):
        at = float(file.read_text().split()[1])
        times = [datetime.fromisoformat(str(event["time"])).timestamp() for event in events]
        count = sum(time <= at for time in times)
        found.append(struck(events, "driver_killed", count, count))
    return found


def assert_nothing_is_lost(folder: Path, points: Sequence[str]) -> None:
    spec = spec_of(folder)
    events = list(read_events(events_file(spec, NAME)))
    records, journal = load_records(spec, NAME), journal_of(folder)
    injected = strikes(folder, events)
    assert len(injected) == len(points)

    verdict = judge(History(events=events, journal=journal, records=records, injected=injected))

    assert verdict.clean, verdict
    assert len({record.plan for record in records}) == len(records) == PLANS
    assert all(isinstance(record.outcome, Measured) for record in records)
    assert len(load_state(spec, NAME).validations) == 1
    assert load_state(spec, NAME).ended is not None
    again = sum(not line.validation for line in journal) - PLANS
    assert again <= any(point.startswith(IN_BETWEEN) for point in points)
    study = folder / "runs" / NAME
    assert not (study / SPOOL_FILE).exists()
    assert not (study / SET_ASIDE_FILE).exists()


def assert_survives(forked: subprocess.Popen[str], folder: Path, order: str) -> None:
    orders = (INTERRUPTED, order) if order.startswith(Step.STUDY_FAIL) else (order,)

    codes = swept(forked, folder, *orders)

    assert codes.count(-signal.SIGKILL) == len(orders)
    assert set(codes) <= {-signal.SIGKILL, AWAY, 0}
    assert codes[-1] == 0
    assert_nothing_is_lost(folder, [one.partition("=")[0] for one in orders])


@pytest.mark.parametrize("order", ["study.write.after=kill:1", "study.close.after=kill:3"])
def test_a_driver_that_is_killed_as_it_stores_a_result(
    forked: subprocess.Popen[str], tmp_path: Path, order: str
) -> None:
    assert_survives(forked, tmp_path, order)


@pytest.mark.thorough
@pytest.mark.parametrize("order", [*FIRST, *SECOND])
def test_a_driver_that_is_killed_at_any_step(
    forked: subprocess.Popen[str], tmp_path: Path, order: str
) -> None:
    assert_survives(forked, tmp_path, order)


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("file.write.after=full", 2),  # `study.folder ... cannot be written`
        ("line.append.before=full", AWAY),  # the result is lost, which the message says
        ("event.append.before=full:4", AWAY),  # the log lacks a line, the sweep goes on
    ],
)
def test_a_disk_that_is_full_at_a_step(
    forked: subprocess.Popen[str], tmp_path: Path, order: str, first: int
) -> None:
    codes = swept(forked, tmp_path, order)

    assert (codes[0], codes[-1]) == (first, 0)
    records = load_records(spec_of(tmp_path), NAME)
    assert len({record.plan for record in records}) == len(records) == PLANS
    assert all(isinstance(record.outcome, Measured) for record in records)
