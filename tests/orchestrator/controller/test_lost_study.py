"""A driver whose database goes away for good: no error reaches the loop that runs trials."""

from __future__ import annotations

import time
from pathlib import Path

from benchmarks.rigs.postgres import Server
from orchestrator.controller import Driver
from orchestrator.core.events import SweepStarted
from orchestrator.core.messages import Assignment, TrialReport
from orchestrator.study.study import Study, StudyLost
from orchestrator.sweep import LosableDriver
from search_spaces.facts import ClusterFacts
from tests.orchestrator.records import BEGAN, make_space
from tests.orchestrator.study.values import NAME, open_study, study_spec
from tests.outcomes import CPU_FINGERPRINT, LIMIT_BYTES, make_measured


def report(given: Assignment) -> TrialReport:
    return TrialReport(
        number=given.request.number,
        outcome=make_measured(),
        fingerprint=CPU_FINGERPRINT,
        notes=(),
        started_at=BEGAN,
        ended_at=BEGAN + 9,
    )


def test_results_are_kept_and_nothing_more_is_handed_out(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    spec = study_spec(tmp_path, "random", study={"storage": database, "wait_minutes": 0.01})
    study = Study(spec, NAME, make_space(spec))
    begun = SweepStarted(
        study=NAME,
        spec=spec,
        space=make_space(spec),
        records=(),
        memory_limit_bytes=LIMIT_BYTES,
        at=time.time(),
    )
    cluster = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)
    driver = LosableDriver(Driver(study, cluster, [], begun))
    first, second = driver.propose(), driver.propose()
    assert isinstance(first, Assignment)
    assert isinstance(second, Assignment)

    postgres.stop()
    try:
        driver.conclude(report(first))
        assert isinstance(driver.lost, StudyLost)
        assert "the result of trial 0" in str(driver.lost)
        assert driver.propose() is None
        driver.conclude(report(second))  # of another group, which was still at it
        driver.lose(second.request.number)
        assert "the result of trial 0" in str(driver.lost)  # the first error is the one to tell
    finally:
        postgres.start()

    assert driver.propose() is None
    again = open_study(spec)
    assert [record.number for record in again.records()] == [0, 1]
    assert again.interrupted() == ()
