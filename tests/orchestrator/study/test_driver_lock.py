"""One driver at a time, whatever is done to the database: two real processes try it (R4, S10)."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from orchestrator.study.holder import Life, this_process
from orchestrator.study.locks import DriverLock, exclusive_driver
from orchestrator.study.reader import load_records
from orchestrator.study.storage import open_engine
from orchestrator.study.study import Study, check_study
from search_spaces.errors import StudyError
from search_spaces.facts import Provenance
from tests.orchestrator.records import make_space
from tests.orchestrator.study.drivers import Obedient, obedient
from tests.orchestrator.study.values import NAME, run, study_spec

REFUSED = "2: study small is being tuned by another driver ("
DISPLACED = "2: study small: another driver ("


@pytest.fixture(scope="module")
def processes() -> Iterator[tuple[Obedient, Obedient]]:
    with obedient() as first, obedient() as second:
        yield first, second


@pytest.fixture
def pair(processes: tuple[Obedient, Obedient]) -> Iterator[tuple[Obedient, Obedient]]:
    """Two drivers, neither of which has a study."""
    yield processes
    for one in processes:
        one.resume()
        one.does("close")


def url_of(file: Path) -> str:
    return f"sqlite:///{file}"


def trials(file: Path) -> int:
    """Returns the number of records in a file, each of another plan."""
    records = load_records(study_spec(file.parent, study={"storage": url_of(file)}), NAME)
    assert len({record.plan for record in records}) == len(records)
    return len(records)


SPELLINGS: dict[str, Callable[[Path], str]] = {
    "driver": lambda file: f"sqlite+pysqlite:///{file}",
    "dots": lambda file: f"sqlite:///{file.parent}/../{file.parent.name}/./study.db",
    "relative": lambda file: f"sqlite:///{os.path.relpath(file)}",
}


def test_another_spelling_is_the_same_study(
    pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    first, second = pair
    file = tmp_path / "study.db"
    assert first.does("open", url_of(file), tmp_path, NAME) == "done"

    for spelling, url in SPELLINGS.items():
        refused = second.does("open", url(file), tmp_path / "other", NAME)
        assert refused.startswith(REFUSED), spelling
        assert f"process {first.process.pid})" in refused

    assert first.does("write") == "done"
    assert trials(file) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["study.db"]


def test_of_a_folder_that_was_moved_and_copied_back_one_driver_writes(
    pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    first, second = pair
    folder, away = tmp_path / "runs", tmp_path / "away"
    folder.mkdir()
    file = folder / "study.db"
    assert first.does("open", url_of(file), tmp_path, NAME) == "done"
    assert first.does("write") == "done"
    folder.rename(away)
    shutil.copytree(away, folder)

    assert second.does("open", url_of(file), tmp_path, NAME) == "done"  # a copy is another study
    refused = first.does("write")

    assert refused.startswith(DISPLACED)
    assert f"process {second.process.pid})" in refused
    assert second.does("write") == "done"
    assert (trials(file), trials(away / "study.db")) == (2, 1)


def test_a_file_that_was_removed_or_replaced_is_waited_for(
    pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    """Nothing is written to another file, nor is an empty one made."""
    first, second = pair
    file, away = tmp_path / "study.db", tmp_path / "away.db"
    assert first.does("open", url_of(file), tmp_path, NAME, 0) == "done"
    assert first.does("write") == "done"
    file.rename(away)

    gone = first.does("write")
    assert gone.startswith("75: study.storage ")
    assert "No such file" in gone
    assert not file.exists()

    shutil.copyfile(away, file)
    assert "was replaced by another file" in first.does("write")
    away.replace(file)
    assert first.does("write") == "done"
    assert second.does("open", url_of(file), tmp_path, NAME).startswith(REFUSED)
    assert trials(file) == 2


def test_two_sweeps_that_begin_at_the_same_time_share_an_empty_storage(
    storage: str, pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    for driver, name in zip(pair, ("anns", "bobs"), strict=True):
        driver.send("open", storage, tmp_path, name)
    assert [driver.answer() for driver in pair] == ["done"] * 2
    for driver in pair * 3:
        driver.send("write")
    assert [driver.answer() for driver in pair * 3] == ["done"] * 6

    spec = study_spec(tmp_path, study={"storage": storage})
    for name in ("anns", "bobs"):
        records = load_records(spec, name)
        assert [record.number for record in records] == [0, 1, 2]
        assert len({record.plan for record in records}) == 3


def stop_at_rest(driver: Obedient, storage: str) -> None:
    """Stops a driver while it has no transaction open, as it is nearly all the time."""
    engine = open_engine(storage)
    while True:
        driver.stop()
        try:
            with engine.begin() as connection:
                if engine.name == "postgresql":
                    connection.execute(text("SET LOCAL lock_timeout = '200ms'"))
                connection.execute(text("UPDATE study_user_attributes SET key = key"))
        except OperationalError:
            driver.resume()
        else:
            return


@pytest.mark.thorough
def test_a_driver_that_was_paused_until_another_took_over_writes_nothing_more(
    storage: str, pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    first, second = pair
    assert first.does("open", storage, tmp_path, NAME) == "done"
    assert first.does("write") == "done"
    stop_at_rest(first, storage)

    assert second.does("open", storage, tmp_path, NAME) == "done"
    assert second.does("write") == "done"
    first.resume()
    refused = first.does("write")

    assert refused.startswith(DISPLACED)
    assert f"process {second.process.pid})" in refused
    assert second.does("write") == "done"
    second.does("close")
    assert first.does("write").startswith(DISPLACED)  # for good: its trials are another's
    spec = study_spec(tmp_path, "random", study={"storage": storage})
    assert len(load_records(spec, NAME)) == 3


def test_a_driver_that_lost_the_study_between_check_and_write_writes_nothing(
    storage: str, pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    """The transaction itself compares the token, so that no moment is left in between."""
    spec = study_spec(tmp_path, "random", study={"storage": storage})
    with exclusive_driver(spec, NAME) as lock:
        study = Study(spec, NAME, make_space(spec), lock=lock)
        run(study, 1)
        lose_in_check(lock, storage)

        with pytest.raises(StudyError, match="took over while this one was unresponsive"):
            run(study, 1)
        with pytest.raises(StudyError, match="took over while this one was unresponsive"):
            study.keep_provenance(Provenance(at=0.0, user="ann", is_job=False, code=None))
    assert len(load_records(spec, NAME)) == 1


def lose_in_check(lock: DriverLock, storage: str) -> None:
    """Lets another driver take the study whenever the lock has been checked."""
    check = lock.check
    engine = open_engine(storage)

    def check_then_lose() -> None:
        check()
        with engine.begin() as connection:
            connection.execute(
                text("UPDATE study_user_attributes SET value_json = '{}' WHERE key = 'driver'")
            )

    lock.check = check_then_lose  # type: ignore[method-assign]


@pytest.mark.cases_by_default(1)
def test_a_driver_that_was_killed_leaves_the_study_at_once(storage: str, tmp_path: Path) -> None:
    with obedient() as first:
        assert first.does("open", storage, tmp_path, NAME) == "done"

    said: list[str] = []
    spec = study_spec(tmp_path, "random", study={"storage": storage})
    with exclusive_driver(spec, NAME, said.append):
        assert said == []  # nobody was waited for


@pytest.mark.thorough
def test_a_driver_in_another_container_is_watched(
    storage: str, pair: tuple[Obedient, Obedient], tmp_path: Path
) -> None:
    """Its process cannot be seen from here, but its heartbeat can."""
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip("namespaces of processes are made by root")
    _, second = pair
    with obedient("unshare", "--pid", "--fork", "--kill-child") as first:
        assert first.does("open", storage, tmp_path, NAME) == "done"
        assert second.does("open", storage, tmp_path, NAME).startswith(REFUSED)
        assert first.does("write") == "done"

    assert second.does("open", storage, tmp_path, NAME) == "done"


def test_this_process_runs() -> None:
    assert this_process(None).life() is Life.RUNNING
    assert replace(this_process(None), started="1").life() is Life.ENDED  # another one of its id
    assert replace(this_process(None), boot="another").life() is Life.UNKNOWN


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        ("sqlite://", "a database in memory"),
        ("sqlite:///file:x.db?nolock=1&uri=true", "its file is a URI"),
        ("mysql://ann@db.example/sweeps", "kept in SQLite or PostgreSQL"),
    ],
)
def test_a_storage_that_cannot_lock_is_refused(
    storage: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(StudyError, match=words) as caught:
        check_study(study_spec(tmp_path, study={"storage": storage}), NAME)

    assert str(caught.value).startswith("study.storage ")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
