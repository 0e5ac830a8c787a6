"""A database that becomes unavailable during a sweep: real servers, and a cut connection."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState

from orchestrator.study.locks import exclusive_driver
from orchestrator.study.reader import load_records
from orchestrator.study.storage import opened_storage, storage_url
from orchestrator.study.study import Study
from search_spaces.errors import StudyError, StudyLost
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.records import PROPOSED, make_record, make_space
from tests.orchestrator.study.test_retry import Hours
from tests.orchestrator.study.values import NAME, next_plan, open_study, run, study_spec
from tests.outcomes import make_measured
from tests.proxies import Proxy, proxy_to
from tests.rigs.postgres import PASSWORD, QUOTED, Server

AWAY_SECONDS = 3.0  # longer than what is not told of


@pytest.fixture
def spec(database: str, tmp_path: Path) -> SweepSpec:
    return study_spec(tmp_path, "random", study={"storage": database})


@pytest.fixture
def running(postgres: Server) -> Iterator[Server]:
    """The server; it is restarted after the test."""
    yield postgres
    if postgres.process is None:
        postgres.start()


def kept(spec: SweepSpec) -> list[tuple[int, TrialState]]:
    with opened_storage(storage_url(spec, NAME)) as storage:
        identity = storage.get_study_id_from_name(NAME)
        return [(trial.number, trial.state) for trial in storage.get_all_trials(identity)]


def comes_back(server: Server, seconds: float) -> threading.Thread:
    def later() -> None:
        time.sleep(seconds)
        server.start()

    thread = threading.Thread(target=later)
    thread.start()
    return thread


def test_a_result_waits_for_a_server_that_comes_back(spec: SweepSpec, running: Server) -> None:
    said: list[str] = []
    with exclusive_driver(spec, NAME) as lock:
        study = Study(spec, NAME, make_space(spec), lock=lock)
        study.retries.say = said.append
        plan = next_plan(study)
        number = study.ask(plan, PROPOSED)
        running.stop()
        thread = comes_back(running, AWAY_SECONDS)

        study.tell(make_record(number, plan, make_measured(30.0)))
        run(study, 2)
        thread.join()

        with pytest.raises(StudyError, match="another driver"), exclusive_driver(spec, NAME):
            pass  # the lock is the database's, and came back with the server

    assert [record.number for record in load_records(spec, NAME)] == [0, 1, 2]
    assert kept(spec) == [(number, TrialState.COMPLETE) for number in range(3)]
    away, back = said
    assert away.startswith("the study's storage is unavailable (")
    assert "retrying for up to" in away
    assert back.startswith("the study's storage is back after ")


@pytest.mark.thorough
def test_a_server_that_stays_away_ends_the_sweep_and_its_trials_run_again(
    spec: SweepSpec, running: Server
) -> None:
    hours = Hours()
    study = Study(spec, NAME, make_space(spec), clock=hours.clock)
    run(study, 1)
    first = next_plan(study)
    first_number = study.ask(first, PROPOSED)
    second = next_plan(study)
    second_number = study.ask(second, PROPOSED)
    running.stop()

    with pytest.raises(StudyLost) as caught:
        study.tell(make_record(first_number, first, make_measured(30.0)))
    waited = hours.now
    with pytest.raises(StudyLost):  # the other group's trial, which ended later: nobody waits again
        study.tell(make_record(second_number, second, make_measured(31.0)))

    message = str(caught.value)
    assert message.startswith("study.storage postgresql://127.0.0.1:")
    assert "for longer than study.wait_minutes (10)" in message
    assert "\n" not in message
    assert not {PASSWORD, QUOTED} & set(message.split(":"))
    assert 600 <= waited == hours.now < 700
    assert hours.pauses[:3] == [0.25, 0.5, 1.0]
    assert max(hours.pauses) == 15.0

    running.start()
    again = open_study(spec)
    assert [trial.plan for trial in again.interrupted()] == [first, second]
    assert [record.number for record in again.records()] == [0]


@pytest.fixture
def line(postgres: Server) -> Iterator[Proxy]:
    with proxy_to(postgres.port) as proxy:
        yield proxy


@pytest.fixture
def through(spec: SweepSpec, postgres: Server, line: Proxy) -> SweepSpec:
    """The same study, through the proxy."""
    assert spec.study.storage is not None
    url = spec.study.storage.replace(f":{postgres.port}/", f":{line.port}/")
    return spec.model_copy(update={"study": spec.study.model_copy(update={"storage": url})})


@pytest.mark.thorough
@pytest.mark.parametrize("commits", range(1, 4))
def test_a_commit_whose_answer_was_lost_tells_once(
    commits: int, spec: SweepSpec, through: SweepSpec, line: Proxy
) -> None:
    """The commit of a result may be lost, and each of the next trial's."""
    study = open_study(through)
    plan = next_plan(study)
    number = study.ask(plan, PROPOSED)
    line.swallow(b"COMMIT", commits)

    study.tell(make_record(number, plan, make_measured(30.0)))
    run(study, 1)

    assert line.swallowed == 1
    states = [state for _, state in kept(spec)]
    assert states[:2] == [TrialState.COMPLETE, TrialState.COMPLETE]
    assert set(states[2:]) <= {TrialState.FAIL}  # what Optuna opened once more itself
    assert [record.number for record in load_records(spec, NAME)] == [0, 1]
