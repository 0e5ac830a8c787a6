"""Several sweeps, and several processes, on one storage."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from orchestrator.study.locks import exclusive_driver
from orchestrator.study.reader import load_records
from orchestrator.study.storage import opened_storage
from orchestrator.study.study import Study, check_study
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.records import make_space
from tests.orchestrator.study.drivers import driver
from tests.orchestrator.study.values import NAME, run, study_spec

pytestmark = pytest.mark.thorough


def begin_together(processes: Iterable[subprocess.Popen[str]]) -> list[tuple[int, str]]:
    """Starts all processes once they are ready; returns exit code and output of each."""
    processes = list(processes)
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready")
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=600)[0].strip() for process in processes]
    return [(process.returncode, text) for process, text in zip(processes, said, strict=True)]


def test_processes_that_make_the_tables_at_the_same_time(storage: str, tmp_path: Path) -> None:
    names = [f"study-{number}" for number in range(5)]

    ended = begin_together([driver("open", storage, tmp_path, name, 0) for name in names])

    assert ended == [(0, "done")] * len(names)
    with opened_storage(storage) as opened:
        assert sorted(study.study_name for study in opened.get_all_studies()) == names
        assert opened.get_current_version() == opened.get_head_version()


def test_two_sweeps_at_the_same_time_keep_apart(storage: str, tmp_path: Path) -> None:
    ended = begin_together(
        [driver("sweep", storage, tmp_path, name, 6) for name in ("anns", "bobs")]
    )

    assert ended == [(0, "done")] * 2
    spec = study_spec(tmp_path, study={"storage": storage})
    for name in ("anns", "bobs"):
        records = load_records(spec, name)
        assert [record.number for record in records] == list(range(6))
        assert len({record.plan for record in records}) == 6


def test_a_second_driver_is_refused_while_the_first_lives(
    spec: SweepSpec, storage: str, tmp_path: Path
) -> None:
    first = driver("hold", storage, tmp_path / "runs", NAME, 0)
    try:
        assert first.stdout is not None
        assert first.stdin is not None
        first.stdout.readline()
        first.stdin.write("\n")
        first.stdin.flush()
        assert first.stdout.readline().strip() == "holding"

        with pytest.raises(StudyError) as refused:
            check_study(spec, NAME)
        with pytest.raises(StudyError, match="another driver"), exclusive_driver(spec, NAME):
            pass
        assert str(refused.value).startswith("study small is being tuned by another driver (")
        assert f"process {first.pid})" in str(refused.value)
        assert "choose another study.name" in str(refused.value)
        assert load_records(spec, NAME) == ()  # who only reads is never in the way
        with exclusive_driver(spec, "another"):
            pass
    finally:
        first.kill()
        first.communicate()

    check_study(spec, NAME)  # at once
    with exclusive_driver(spec, NAME) as lock:
        study = Study(spec, NAME, make_space(spec), lock=lock)
        (left,) = study.interrupted()
        study.abandon(left.number)
        run(study, 1)
    assert len(load_records(spec, NAME)) == 1
