"""Storages that cannot be opened: one sentence each, without a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.study.reader import load_records
from orchestrator.study.storage import storage_url
from orchestrator.study.study import check_study
from search_spaces.errors import StudyError
from tests.orchestrator.study.values import NAME, run, study_spec

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
        (f"postgresql://ann:{SECRET}/x@127.0.0.1:9/sweeps", "Connection refused"),  # nor a slash
        (f"postgresql://127.0.0.1:9/sweeps?user=ann&password={SECRET}", "Connection refused"),
        (f"postgresql+pg8000://ann:{SECRET}@db.example/sweeps", "pg8000, is not installed"),
        (f"mysql://ann:{SECRET}@db.example/sweeps", "MySQLdb, is not installed"),
        (f"carrier-pigeon://ann:{SECRET}@loft", "carrier"),
        (f"ann:{SECRET}@db.example", "parse"),
        ("no url at all", "parse"),
    ],
)
def test_urls_that_lead_nowhere(storage: str, words: str, tmp_path: Path) -> None:
    assert words in refused(tmp_path, storage)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.db"
    file.write_text("this is no database at all, and long enough to tell" * 40)

    assert "file is not a database" in refused(tmp_path, f"sqlite:///{file}")


def test_a_folder_where_the_file_should_be(tmp_path: Path) -> None:
    (tmp_path / "folder.db").mkdir()

    assert "unable to open database file" in refused(tmp_path, f"sqlite:///{tmp_path}/folder.db")


def test_a_parent_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused(tmp_path, f"sqlite:///{tmp_path}/file/study.db")


def test_a_folder_that_nobody_can_write() -> None:
    assert "study.storage sqlite:////proc/plimsoll/small/study.db" in refused(
        Path("/proc/plimsoll"), None
    )


def test_reports_of_studies_that_are_not_there(tmp_path: Path) -> None:
    spec = study_spec(tmp_path)
    with pytest.raises(StudyError, match=r"there is no study small yet: .*; run plimsoll tune"):
        load_records(spec, NAME)
    assert not list(tmp_path.iterdir())  # looking leaves nothing behind

    elsewhere = study_spec(tmp_path, study={"storage": f"sqlite:///{tmp_path}/all.db"})
    check_study(elsewhere, "another")
    with pytest.raises(StudyError, match="holds no study small; run plimsoll tune"):
        load_records(elsewhere, NAME)


def test_by_default_a_study_lies_in_its_own_folder(tmp_path: Path) -> None:
    spec = study_spec(tmp_path)
    check_study(spec, NAME)

    assert storage_url(spec, NAME) == f"sqlite:///{tmp_path}/small/study.db"
    assert (tmp_path / NAME / "study.db").is_file()


def test_two_studies_share_a_storage(tmp_path: Path) -> None:
    from orchestrator.study.study import Study
    from tests.orchestrator.records import make_space

    spec = study_spec(tmp_path, study={"storage": f"sqlite:///{tmp_path}/all.db"})
    for name, trials in (("one", 2), ("two", 3)):
        run(Study(spec, name, make_space(spec)), trials)

    assert len(load_records(spec, "one")) == 2
    assert len(load_records(spec, "two")) == 3
