"""Storages that cannot be opened: one sentence each, without a password."""

from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from orchestrator.study.reader import load_records
from orchestrator.study.storage import storage_errors
from orchestrator.study.study import check_study
from search_spaces.errors import StudyError, StudyLost
from tests.orchestrator.study.values import NAME, study_spec

SECRET = "hunter2"


def refused(folder: Path, storage: str | None) -> str:
    with pytest.raises(StudyError) as caught:
        check_study(study_spec(folder, study={"storage": storage}), NAME)
    message = str(caught.value)
    assert message.startswith("study.storage ")
    assert " cannot be opened: " in message
    assert "\n" not in message
    assert SECRET not in message
    return message


@pytest.mark.parametrize(
    ("storage", "words"),
    [
        (f"postgresql://ann:{SECRET}@127.0.0.1:9/sweeps", "Connection refused"),
        (f"postgresql://ann:{SECRET}@x@127.0.0.1:9/sweeps", ""),  # an @ that is not quoted
        (f"postgresql://127.0.0.1:9/sweeps?user=ann&password={SECRET}", "Connection refused"),
        (f"postgresql+pg8000://ann:{SECRET}@db.example/sweeps", "pg8000, is not installed"),
        (f"carrier-pigeon://ann:{SECRET}@loft", "carrier"),
        (f"ann:{SECRET}@db.example", "parse"),
    ],
)
def test_urls_that_lead_nowhere(storage: str, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, storage)


@pytest.mark.parametrize(
    ("text", "away"),
    [
        ("connection to server at 127.0.0.1, port 9 failed: Connection refused", True),
        ("FATAL:  the database system is starting up", True),
        ("disk I/O error", True),  # of SQLite's disk
        ('FATAL:  password authentication failed for user "ann"', False),
        ('could not translate host name "db.exmaple" to address', False),
    ],
)
def test_a_server_that_does_not_answer_is_no_mistake_of_the_user(text: str, away: bool) -> None:
    error = OperationalError("connect", None, Exception(text))
    error.__cause__ = Exception(text)

    with pytest.raises(StudyError) as caught, storage_errors("postgresql://ann@127.0.0.1:9/sweeps"):
        raise error

    assert isinstance(caught.value, StudyLost) is away


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("this is no database at all, and long enough to tell" * 40)

    assert "file is not a database" in refused(tmp_path, f"sqlite:///{file}")


def test_reports_of_studies_that_are_not_there(tmp_path: Path) -> None:
    spec = study_spec(tmp_path)
    with pytest.raises(StudyError, match=r"there is no study small yet: .*; run plimsoll tune"):
        load_records(spec, NAME)
    assert not list(tmp_path.iterdir())  # looking leaves nothing behind

    elsewhere = study_spec(tmp_path, study={"storage": f"sqlite:///{tmp_path}/all.db"})
    check_study(elsewhere, "another")
    with pytest.raises(StudyError, match="holds no study small; run plimsoll tune"):
        load_records(elsewhere, NAME)


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_s13_a_database_without_encryption_is_not_spoken_to_in_the_clear(
    database: str, mode: str, tmp_path: Path
) -> None:
    """The server of the tests has none, and the address asks for it."""
    url = f"{database}{'&' if '?' in database else '?'}sslmode={mode}"

    assert "server does not support SSL" in refused(tmp_path, url)
