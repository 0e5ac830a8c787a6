"""Worker groups under Ray Tune, with runners that train nothing: assignments and losses."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import ray

from orchestrator.cluster.loop import GroupRunner, run_trials
from orchestrator.cluster.runtime import configure_ray
from orchestrator.cluster.worker_group import GroupFailed, WarmGroup, WorkerGroup
from orchestrator.core.messages import AbstractDriver, Assignment, Later, TrialReport
from orchestrator.core.notes import Message, Note
from orchestrator.core.placement import Placement, Processes
from orchestrator.report.reasons import note_words
from search_spaces.errors import ClusterError
from search_spaces.trial import Cancelled, Crashed, Stopped, TrialRequest
from tests.orchestrator.records import make_plan, make_spec

GROUPS, DEADLY, STILL, LAST = 3, 4, 7, 11  # 11 runs when all others have ended
SILENT_SECONDS = 20.0  # more than a busy machine takes for a beat


@dataclass
class Counting(AbstractDriver):
    """Twelve trials; the last one waits for the others."""

    processes: dict[int, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    most: int = 0
    beside_last: set[int] = field(default_factory=set)
    given: int = 0

    def propose(self, _: Sequence[Placement] = ()) -> Assignment | Later | None:
        if self.given > LAST:
            return None
        if self.given == LAST and self.running:
            return Later()
        number, self.given = self.given, self.given + 1
        if number == LAST:
            self.beside_last = set(self.running)
        self.running.add(number)
        self.most = max(self.most, len(self.running))
        request = TrialRequest(number=number, plan=make_plan(), spec=make_spec())
        return Assignment(request=request, device="cpu", deadline_seconds=60, folder=".")

    def conclude(self, report: TrialReport) -> None:
        self.running.remove(report.number)
        assert report.number not in self.processes
        self.processes[report.number] = note_words(report.notes[0])

    def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
        self.running.remove(number)
        self.lost.append(number)


def _report(given: Assignment) -> TrialReport:
    """Makes a report without a measurement; its note is the process id."""
    return TrialReport(
        number=given.request.number,
        outcome=Cancelled(cause=Stopped(by="the test")),
        fingerprint=None,
        notes=(Message(text=str(os.getpid())),),
        started_at=0.0,
        ended_at=1.0,
    )


class Dying(GroupRunner):
    """Reports its process id, but dies in one trial and hangs in another."""

    def run(self, given: Assignment) -> TrialReport:
        number = given.request.number
        if number == DEADLY:
            os._exit(1)
        if number == STILL:
            os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.3)  # no group gets all of them
        return _report(given)


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Starts Ray; returns a folder that all its processes find in LEFT."""
    folder = tmp_path_factory.mktemp("left")
    configure_ray()
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        object_store_memory=2**27,
        log_to_driver=False,
        runtime_env={"env_vars": {"LEFT": str(folder)}},
    )
    try:
        yield folder
    finally:
        ray.shutdown()


@pytest.fixture(scope="module")
def driver(left: object) -> Counting:
    counting = Counting()
    run_trials(counting, GROUPS, Dying, SILENT_SECONDS)
    return counting


def test_every_trial_ends_once(driver: Counting) -> None:
    lost = [DEADLY, STILL]
    assert sorted(driver.processes) == [n for n in range(LAST + 1) if n not in lost]
    assert driver.lost == lost
    assert not driver.running


def test_groups_outlive_their_trials(driver: Counting) -> None:
    """Two more processes than groups: two lost ones were replaced."""
    assert driver.most <= GROUPS
    assert 1 < len(set(driver.processes.values())) <= GROUPS + 2


def test_a_trial_that_waits_for_others_runs_when_they_have_ended(driver: Counting) -> None:
    assert not driver.beside_last
    assert LAST in driver.processes


class Treacherous(GroupRunner):
    """Kills the queue in the middle of one trial."""

    def run(self, given: Assignment) -> TrialReport:
        if given.request.number == DEADLY:
            ray.kill(self._queue)
            time.sleep(600)  # it is ended
        return _report(given)


@pytest.mark.thorough
def test_trials_go_on_when_what_passes_them_to_groups_dies(left: object) -> None:
    counting = Counting()

    run_trials(counting, 1, Treacherous, SILENT_SECONDS)

    assert counting.lost == [DEADLY]
    assert sorted(counting.processes) == [n for n in range(LAST + 1) if n != DEADLY]


class Doomed(GroupRunner):
    """Kills the queue in every trial."""

    def run(self, given: Assignment) -> TrialReport:
        ray.kill(self._queue)
        time.sleep(600)
        raise AssertionError


@pytest.mark.thorough
def test_what_is_lost_time_and_again_is_given_up(left: object) -> None:
    counting = Counting()

    with pytest.raises(ClusterError, match="died or hung 3 times"):
        run_trials(counting, 1, Doomed, SILENT_SECONDS)

    assert counting.lost == [0, 1, 2]
    assert not counting.running


@pytest.mark.thorough
def test_workers_that_do_not_come_up_are_no_fault_of_the_plan(
    left: object,
) -> None:
    spec = make_spec(cluster={"start_minutes": 0.001})
    processes = Processes.of(make_plan(), "cpu")

    with pytest.raises(GroupFailed) as lost:
        WorkerGroup(spec, processes, "cpu", ".")

    outcome = lost.value.outcome
    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("worker_died", "starting")
    assert "starting did not finish within" in outcome.detail
    # what waits for room would take it once there is some
    assert not any("_fit" in thread.name for thread in threading.enumerate())


SMALL_A, SMALL_B, LARGE = (
    Placement((("a", 1),)),
    Placement((("b", 1),)),
    Placement((("a", 1), ("b", 1))),
)
AWAITED_SECONDS = 2.0  # for nodes that come back, while nothing runs


@dataclass
class Crowded(AbstractDriver):
    """Two small trials at the same time, one on both nodes, and one that waits for its node."""

    idle: list[list[Placement]] = field(default_factory=list)
    ended: dict[int, tuple[str, ...]] = field(default_factory=dict)
    running: set[int] = field(default_factory=set)
    given: int = 0
    since: float | None = None

    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        number = self.given
        if number == 4:
            return None
        if number >= 2 and self.running:
            return Later()
        if number == 3:
            self.since = self.since or time.monotonic()
            if time.monotonic() < self.since + AWAITED_SECONDS:
                return Later()
        self.given += 1
        self.running.add(number)
        self.idle.append(sorted(idle, key=lambda place: place.parts))
        return Assignment(
            request=TrialRequest(number=number, plan=make_plan(), spec=make_spec()),
            device="cpu",
            deadline_seconds=60,
            folder=".",
            placement=[SMALL_A, SMALL_B, LARGE, LARGE][number],
            evicted=tuple(idle) if number == 2 else (),
        )

    def conclude(self, report: TrialReport) -> None:
        self.running.remove(report.number)
        self.ended[report.number] = tuple(map(note_words, report.notes))

    def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
        raise AssertionError(number)


class Workers(WarmGroup):
    """Writes a file when the workers are stopped."""

    def stop(self) -> None:
        Path(os.environ["LEFT"], str(os.getpid())).touch()


class Warm(GroupRunner):
    """Reports its process id."""

    def setup(self, config: dict[str, Any]) -> None:
        super().setup(config)
        self._group = Workers()

    def run(self, given: Assignment) -> TrialReport:
        time.sleep(1)
        return _report(given)

    def cleanup(self) -> None:
        pass


@pytest.fixture(scope="module")
def crowded(left: Path) -> tuple[Crowded, list[str]]:
    """The driver after its trials, and the processes that had to stop their workers."""
    deciding = Crowded()
    run_trials(deciding, 2, Warm)
    return deciding, [file.name for file in left.iterdir()]


@pytest.mark.thorough
def test_workers_in_the_way_are_let_go(crowded: tuple[Crowded, list[str]]) -> None:
    """One of the two idle groups takes the large trial, the other stops its workers."""
    driver, gone = crowded

    small = {driver.ended[0][0], driver.ended[1][0]}
    assert len(small) == 2
    assert driver.idle[2] == [SMALL_A, SMALL_B]
    assert gone == list(small - {driver.ended[2][0]})


@pytest.mark.thorough
def test_a_trial_whose_node_is_awaited_runs_on_the_workers_that_are_there(
    crowded: tuple[Crowded, list[str]],
) -> None:
    driver, _ = crowded

    assert driver.idle[3] == [LARGE]
    assert driver.ended[3] == driver.ended[2]
