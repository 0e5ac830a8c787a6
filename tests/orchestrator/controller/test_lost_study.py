"""A study whose database goes away for good: no error reaches the loop that runs groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator.core.controller_state import Phase
from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.reasons import IsBaseline
from orchestrator.study.reader import load_state
from orchestrator.study.storage import open_engine, storage_url
from orchestrator.study.study import Study
from search_spaces.errors import StudyError, StudyLost
from tests.orchestrator.controller.sweeps import DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import make_space, make_spec
from tests.orchestrator.study.values import study_spec
from tests.outcomes import make_measured
from tests.rigs.postgres import Server


def test_results_are_kept_and_nothing_more_is_started(
    postgres: Server, database: str, tmp_path: Path
) -> None:
    spec = study_spec(tmp_path, "random", study={"storage": database, "wait_minutes": 0.01})
    ours = Sweep(spec, PlayedCluster(make_nodes("a", "b")), groups=2)
    first, second = ours.ask(), ours.ask()

    postgres.stop()
    try:
        ours.report(first, make_measured())
        assert isinstance(ours.controller.error, StudyLost)
        assert "the result of trial 0" in str(ours.controller.error)
        assert ours.phase is Phase.DONE
        assert ours.next() is None
        assert ours.cluster.dismissed == [first.group]
        ours.report(second, make_measured())  # of another group, which still ran it
        ours.lose(second)
        # the first error is the one to raise
        assert "the result of trial 0" in str(ours.controller.error)
    finally:
        postgres.start()

    assert ours.next() is None
    assert ours.cluster.dismissed == [first.group, second.group]
    again = Sweep(spec)
    assert [record.number for record in again.study.records()] == [0, 1]
    assert again.study.interrupted() == ()


def test_a_driver_that_finds_a_damaged_record_says_so_and_goes_on(tmp_path: Path) -> None:
    spec = study_spec(tmp_path, "random")
    first = Sweep(spec)
    for _ in range(2):
        first.report(first.ask(), make_measured())
    with open_engine(storage_url(spec, "demo")).begin() as connection:
        damage = "UPDATE trial_user_attributes SET value_json = '[]' WHERE key = 'record'"
        connection.execute(text(f"{damage} AND trial_id = 1"))

    again = Sweep(spec)

    assert isinstance(again.recorder.heard[0][0], SweepStarted)
    assert "the record of trial 0 is left out" in again.notes[0]
    again.report(again.ask(), make_measured())
    assert again.study.records()[0].number == 1
    assert len(again.study.records()) == 2


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep with two groups and a study in SQLite."""
    spec = make_spec(
        study={"folder": str(tmp_path), "sampler": "random"},
        budget={"trials": 2, "minutes": 10, "trial_seconds": 60},
    )
    return Sweep(spec, PlayedCluster(make_nodes("a", "b")), groups=2)


def fail_once(sweep: Sweep, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Lets the next call of a method of the study fail, and none after it."""
    method = getattr(sweep.study, name)

    def fail(*_: object, **__: object) -> None:
        monkeypatch.setattr(sweep.study, name, method)
        raise StudyError("gone")

    monkeypatch.setattr(sweep.study, name, fail)


@pytest.mark.parametrize("failing", [0, 1])
def test_a_storage_that_comes_back_gets_results_but_no_trial_and_no_end(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """A result is missing there until the next driver has read it from a file."""
    rates = (20.0, 30.0)
    for number, run in enumerate([sweep.ask(), sweep.ask()]):
        if number == failing:
            fail_once(sweep, monkeypatch, "tell")
        sweep.report(run, make_measured(rates[number]))

    assert str(sweep.controller.error) == "gone"
    assert sweep.phase is Phase.DONE
    assert sweep.next() is None
    assert sweep.outcomes == [make_measured(rates[1 - failing])]
    assert sweep.events(SweepEnded) == []
    assert load_state(sweep.spec, "demo").ended is None
    assert sorted(sweep.cluster.dismissed) == sweep.cluster.started


def test_no_retry_is_opened_after_an_error(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open trial would count as interrupted, and its plan be blamed by the next driver."""
    first, second = sweep.ask(), sweep.ask()
    fail_once(sweep, monkeypatch, "abandon")
    sweep.report(first, DIED)
    sweep.report(second, make_measured())

    assert sweep.next() is None
    assert sweep.phase is Phase.DONE
    (left,) = Study(sweep.spec, "demo", make_space(sweep.spec)).interrupted()
    assert (left.number, left.reason) == (first.request.number, IsBaseline())
    again = Sweep(sweep.spec)
    assert again.ask().request.plan == first.request.plan


def test_a_trial_that_cannot_be_opened_ends_the_sweep(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(sweep, monkeypatch, "ask")

    assert sweep.next() is None
    assert str(sweep.controller.error) == "gone"
    assert sweep.phase is Phase.DONE
    assert sweep.cluster.started == []
    assert sweep.events(TrialEnded) == []
    assert sweep.study.records() == ()
