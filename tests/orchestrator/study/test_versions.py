"""Storages of another version of Optuna, and databases of other programs."""

import sys
from pathlib import Path

import pytest

from orchestrator.study.reader import earlier_studies, load_records
from orchestrator.study.storage import opened_storage
from orchestrator.study.study import check_study
from orchestrator.workspace import with_driver
from search_spaces.errors import StudyError
from search_spaces.specification.schema import SweepSpec
from tests.commands import run_command
from tests.orchestrator.study.values import NAME, execute, open_study, run
from tests.rigs.postgres import PASSWORD, QUOTED


def refused(spec: SweepSpec) -> str:
    with pytest.raises(StudyError) as caught:
        check_study(spec, NAME)
    with pytest.raises(StudyError) as read:
        load_records(spec, NAME)
    assert str(caught.value) == str(read.value)
    assert "\n" not in str(caught.value)
    assert not [secret for secret in (PASSWORD, QUOTED) if secret in str(caught.value)]
    return str(caught.value)


@pytest.mark.cases_by_default(1)
def test_an_older_storage_is_upgraded_by_the_command_that_is_named(
    spec: SweepSpec, storage: str
) -> None:
    """The test undoes the last migration; the command in the message repeats it."""
    run(open_study(spec), 2)
    with opened_storage(storage) as opened:
        before = opened.get_all_versions()[1]
    execute(storage, f"UPDATE alembic_version SET version_num = '{before}'")

    command = refused(spec).partition("`$ ")[2].partition("`")[0].split()

    assert command == ["optuna", "storage", "upgrade", "--storage", "$STORAGE_URL"]
    assert earlier_studies(spec, "other") == ()  # a search can do without
    upgraded = run_command(
        [str(Path(sys.executable).with_name("optuna")), *command[1:-1], with_driver(storage)],
        environment={"PATH": "", "PGPASSWORD": PASSWORD},
    )
    assert upgraded.returncode == 0, upgraded.stderr
    assert len(load_records(spec, NAME)) == 2


def test_a_newer_storage_says_so(spec: SweepSpec, storage: str) -> None:
    run(open_study(spec), 1)
    execute(storage, "UPDATE alembic_version SET version_num = 'v9.0.0.a'")

    assert "Please try updating optuna" in refused(spec)


def test_mlflows_database_is_left_alone(spec: SweepSpec, storage: str) -> None:
    execute(storage, "CREATE TABLE experiments (experiment_id INTEGER)")

    with pytest.raises(StudyError, match="is MLflow's database: the study needs one of its own"):
        check_study(spec, NAME)
    with pytest.raises(StudyError, match="holds no study yet"):
        load_records(spec, NAME)
