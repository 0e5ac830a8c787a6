"""Groups under Ray Tune, with runners that do nothing: who runs what, and who is told."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import ray

from orchestrator.ray_cluster import settle_ray
from orchestrator.ray_tune import GroupRunner, run_trials
from orchestrator.trials import AbstractDriver, Assignment, Later, TrialReport
from search_spaces.outcome import Cancelled
from search_spaces.request import TrialRequest
from tests.orchestrator.records import make_plan, make_spec

GROUPS, DEADLY, LAST = 3, 4, 11  # trial 4 kills its runner; 11 runs when all others have ended


@dataclass
class Counting(AbstractDriver):
    """Twelve trials; the last one waits for the others."""

    processes: dict[int, str] = field(default_factory=dict)
    lost: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    most: int = 0
    beside_last: set[int] = field(default_factory=set)
    given: int = 0

    def propose(self) -> Assignment | Later | None:
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
        self.processes[report.number] = report.notes[0]

    def lose(self, number: int) -> None:
        self.running.remove(number)
        self.lost.append(number)


class Dying(GroupRunner):
    """Tells its process, but dies of one trial."""

    def run(self, given: Assignment) -> TrialReport:
        number = given.request.number
        if number == DEADLY:
            os._exit(1)
        time.sleep(0.3)  # no group gets all of them
        outcome = Cancelled(detail="nothing was run")
        process: Any = (str(os.getpid()),)
        return TrialReport(
            number=number,
            outcome=outcome,
            fingerprint=None,
            notes=process,
            started_at=0.0,
            ended_at=1.0,
        )


@pytest.fixture(scope="module")
def driver() -> Iterator[Counting]:
    settle_ray()
    ray.init(num_cpus=1, include_dashboard=False, object_store_memory=2**27, log_to_driver=False)
    counting = Counting()
    try:
        run_trials(counting, GROUPS, Dying)
        yield counting
    finally:
        ray.shutdown()


def test_every_trial_ends_once(driver: Counting) -> None:
    assert sorted(driver.processes) == [number for number in range(LAST + 1) if number != DEADLY]
    assert driver.lost == [DEADLY]
    assert not driver.running


def test_groups_outlive_their_trials(driver: Counting) -> None:
    """One more process than groups: the one that died was replaced."""
    assert driver.most <= GROUPS
    assert 1 < len(set(driver.processes.values())) <= GROUPS + 1


def test_a_trial_that_waits_for_others_runs_when_they_have_ended(driver: Counting) -> None:
    assert not driver.beside_last
    assert LAST in driver.processes
