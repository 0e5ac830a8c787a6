"""Locations of the study and MLflow: the specification first, then the environment."""

from pathlib import Path

import pytest

from orchestrator.study.storage import storage_url
from orchestrator.tracking.mlflow_store import store_uri
from orchestrator.tracking.mlflow_view import Pages, ui_command, ui_environment
from orchestrator.workspace import (
    EXPERIMENT_VARIABLE,
    STORAGE_VARIABLE,
    TRACKING_VARIABLE,
    experiment_name,
    with_driver,
)
from search_spaces.specification.load import parse_spec, spec_to_yaml
from tests.orchestrator.records import make_spec

SHARED = "postgresql://ann:hunter2@db:5432/sweeps"
SERVER = "http://ann:hunter2@mlflow:5000"


@pytest.fixture(autouse=True)
def nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STORAGE_VARIABLE, raising=False)
    monkeypatch.delenv(TRACKING_VARIABLE, raising=False)


def test_without_either_files_in_the_folder_are_taken(tmp_path: Path) -> None:
    spec = make_spec(study={"folder": str(tmp_path)})

    assert storage_url(spec, "one") == f"sqlite:///{tmp_path}/one/study.db"
    assert store_uri(spec) == f"sqlite:///{tmp_path}/mlflow.db"


def test_the_environment_is_taken_where_the_specification_names_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(STORAGE_VARIABLE, SHARED)
    monkeypatch.setenv(TRACKING_VARIABLE, SERVER)

    assert storage_url(make_spec(), "one") == SHARED
    assert store_uri(make_spec()) == SERVER
    named = make_spec(study={"storage": "sqlite:///mine.db"}, tracking={"uri": "http://mine"})
    assert storage_url(named, "one") == "sqlite:///mine.db"
    assert store_uri(named) == "http://mine"


def test_a_copy_without_the_password_finds_it_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = make_spec(study={"storage": SHARED}, tracking={"uri": SERVER})
    copy = parse_spec(spec_to_yaml(spec), source="copy")
    assert storage_url(copy, "one") == "postgresql://ann@db:5432/sweeps"

    monkeypatch.setenv(STORAGE_VARIABLE, SHARED)
    monkeypatch.setenv(TRACKING_VARIABLE, "http://ann:hunter2@elsewhere:5000")

    assert storage_url(copy, "one") == SHARED
    assert store_uri(copy) == "http://ann@mlflow:5000"  # another server's password is not told it


@pytest.mark.parametrize("uri", ["postgresql://ann:hunter2@db/mlflow", SERVER])
def test_no_argument_of_a_process_holds_a_password(uri: str) -> None:
    spec = make_spec(tracking={"uri": uri})

    assert "hunter2" not in " ".join(ui_command(spec, Pages(trials="http://ann@mlflow:5000")))
    told = ui_environment(spec).get("MLFLOW_BACKEND_STORE_URI")
    assert told == (None if uri == SERVER else with_driver(uri))


@pytest.mark.parametrize(
    ("named", "environment", "experiment"),
    [
        ("of-the-spec", "of-the-team", "of-the-spec"),
        (None, "of-the-team", "of-the-team"),
        (None, "", "demo"),
    ],
)
def test_the_specification_names_the_experiment_then_the_environment_then_the_study(
    named: str | None, environment: str | None, experiment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(EXPERIMENT_VARIABLE, raising=False)
    if environment is not None:
        monkeypatch.setenv(EXPERIMENT_VARIABLE, environment)

    assert experiment_name(make_spec(tracking={"experiment": named}), "demo") == experiment
