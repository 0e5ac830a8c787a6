"""docs/team.md, step by step as it stands there, on a real server."""

import os
import re
import shlex
import sys
from pathlib import Path

import psycopg
import pytest

from orchestrator.study.locks import exclusive_driver
from orchestrator.study.reader import load_records
from orchestrator.study.study import Study, check_study
from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.workspace import STORAGE_VARIABLE, TRACKING_VARIABLE
from search_spaces.errors import StudyError
from search_spaces.specification.schema import StudySpec
from tests.commands import run_command
from tests.orchestrator.records import make_space
from tests.orchestrator.study.values import run, study_spec
from tests.rigs.postgres import Server

GUIDE = (Path(__file__).parent.parent / "docs" / "team.md").read_text(encoding="utf-8")
EXAMPLE = "db.example:5432"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, flags=re.DOTALL)


def here(text: str, server: Server) -> str:
    assert EXAMPLE in text
    return text.replace(EXAMPLE, f"127.0.0.1:{server.port}")


@pytest.mark.thorough
@pytest.mark.slow
def test_the_guide_from_an_empty_server_to_a_sweep(
    postgres: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, grant = blocks("sql")
    make, tell, upgrade = blocks("sh")
    for statement in create.split(";\n"):
        if statement.strip():
            postgres.execute(statement)
    owner = here(f"postgresql://plimsoll_owner:choose-one@{EXAMPLE}/studies", postgres)
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(grant)  # type: ignore[call-overload]
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", tell, flags=re.MULTILINE))
    assert set(variables) == {STORAGE_VARIABLE, TRACKING_VARIABLE}
    storage = here(variables[STORAGE_VARIABLE], postgres)

    with pytest.raises(StudyError, match="permission denied for schema public"):
        check_study(study_spec(tmp_path, study={"storage": storage}), "too-early")
    for command in (*make.splitlines(), *upgrade.splitlines()):
        _do(here(command, postgres), password="choose-one")

    monkeypatch.setenv(STORAGE_VARIABLE, storage)
    spec = study_spec(tmp_path, "random")
    check_study(spec, "anns")
    with exclusive_driver(spec, "anns") as lock:
        run(Study(spec, "anns", make_space(spec), lock=lock), 2)
    assert len(load_records(spec, "anns")) == 2
    with (
        psycopg.connect(storage) as user,
        pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner"),
    ):
        user.execute("DROP TABLE trials CASCADE")
    monkeypatch.setenv(TRACKING_VARIABLE, owner.replace("/studies", "/mlflow"))
    check_tracking(spec)


def _do(command: str, *, password: str) -> None:
    program, *arguments = shlex.split(command)
    done = run_command(
        [str(Path(sys.executable).with_name(program)), *arguments],
        environment={**os.environ, "PGPASSWORD": password},
    )
    assert done.returncode == 0, done.stderr


def test_what_the_guide_says_in_figures_is_so() -> None:
    assert f"`study.wait_minutes` ({StudySpec().wait_minutes:g})" in GUIDE
