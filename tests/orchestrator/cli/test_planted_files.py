"""Nothing is written outside, whatever somebody left at a name that a command writes."""

import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from orchestrator.export.observed_run import LOG_NAME, observed_run
from orchestrator.study.study import Study
from orchestrator.tracking.mlflow_store import ARTIFACTS_VARIABLE, check_artifacts
from orchestrator.workspace import save_spec
from search_spaces.errors import UserError
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.studies import a_plan, a_study
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.export.values import an_export
from tests.orchestrator.records import make_space, make_spec
from tests.orchestrator.tracking.test_mlflow import PROVENANCE, runs_of
from tests.outcomes import make_measured

RUNS = Path("plimsoll-runs")
OUTCOMES = ((a_plan(), make_measured(20.0, 0.3)),)
NOBODY = 65534
EVERY = ("link", "dangling link", "pipe", "folder", "other user's")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that no command has to do with; the current one is beside it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    folder = tmp_path / "outside"
    (folder / "folder").mkdir(parents=True)
    (folder / "file").write_text("mine\n")
    return folder


def plant(kind: str, name: Path, outside: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    name.unlink(missing_ok=True)
    match kind:
        case "link":
            name.symlink_to(outside / "file")
        case "dangling link":
            name.symlink_to(outside / "new")
        case "pipe":
            os.mkfifo(name)
        case "folder":
            name.mkdir()
        case _:
            name.write_text("theirs\n")
            try:
                os.chown(name, NOBODY, NOBODY)
            except PermissionError:
                pytest.skip("only root makes files of other users")


def untouched(outside: Path, name: Path) -> bool:
    """Tells whether nothing outside has changed, nor a file of another user's."""
    foreign = name.is_file() and not name.is_symlink() and name.read_text() != "theirs\n"
    files = {file.name for file in outside.rglob("*")}
    return files == {"file", "folder"} and (outside / "file").read_text() == "mine\n" != foreign


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("report --html page.html", "page.html"),
        ("report --json page.json", "page.json"),
        ("export --format torchrun --out exported", "exported"),
        ("init --force --recipe fit-2x24gb", "plimsoll.yaml"),
        ("init --force --recipe fit-2x24gb", "plimsoll.schema.json"),
        ("tune demo.yaml", "plimsoll-runs/demo/spec.yaml"),
        ("tune demo.yaml", "plimsoll-runs/demo/journal.jsonl"),
        ("tune demo.yaml", "plimsoll-runs/demo/report.html"),
        ("tune demo.yaml", "plimsoll-runs/demo/study.db"),
        ("tune demo.yaml", "plimsoll-runs/demo"),
        ("tune tracked.yaml", "plimsoll-runs/mlflow.db"),
        ("retry --crashed", "plimsoll-runs/demo/study.db"),
    ],
)
def test_a_command_refuses_what_was_planted(
    outside: Path, capsys: pytest.CaptureFixture[str], words: str, file: str, kind: str
) -> None:
    name = Path(file)
    spec = a_study(OUTCOMES)
    tree = yaml.safe_load(spec.read_text())
    Path("tracked.yaml").write_text(yaml.safe_dump({**tree, "tracking": {"enabled": True}}))
    is_folder = file in ("exported", "plimsoll-runs/demo")
    if is_folder and kind in ("folder", "other user's"):
        pytest.skip("a folder belongs there; another user's file is none")
    if name.is_dir():
        name.rename("elsewhere")
    plant(kind, name, outside)
    if is_folder and kind == "link":
        name.unlink()
        name.symlink_to(outside / "folder")

    code, said = command(capsys, *words.split())

    assert (code, str(name) in said) == (2, True), said
    assert untouched(outside, name)


@pytest.mark.parametrize("kind", EVERY)
def test_verify_leaves_a_planted_log_alone(outside: Path, kind: str) -> None:
    Path("train.py").write_text("raise SystemExit('no data')")
    plant(kind, Path(LOG_NAME), outside)
    manifest = an_export(command="python train.py")

    with pytest.raises(UserError, match="no data") as caught:
        observed_run(manifest, Path(), steps=3, seconds=60)

    assert f"in {Path(LOG_NAME)})" not in str(caught.value)
    assert untouched(outside, Path(LOG_NAME))


def swept(**sections: object) -> SweepSpec:
    """Runs a sweep that MLflow does not know."""
    ours = Sweep(make_spec(budget={"trials": 1, "minutes": 10, "trial_seconds": 60}, **sections))
    Study(ours.spec, "demo", make_space(ours.spec)).keep_provenance(replace(PROVENANCE, at=0.0))
    save_spec(ours.spec, "demo")
    ours.run(iter([make_measured(20.0, 0.3)]))
    return ours.spec


@pytest.mark.parametrize("kind", EVERY)
@pytest.mark.parametrize("name", ["report.html", "spec.yaml", "best_plan.json"])
def test_sync_refuses_a_planted_artifact(
    outside: Path,
    capsys: pytest.CaptureFixture[str],
    mlflow_store: Callable[[Path], None],
    name: str,
    kind: str,
) -> None:
    mlflow_store(RUNS)
    spec = swept()
    assert command(capsys, "sync")[0] == 0
    (sweep,), _ = runs_of(spec, "demo")
    artifact = Path(sweep.info.artifact_uri.removeprefix("file://"), name)
    assert artifact.is_file()
    plant(kind, artifact, outside)

    code, said = command(capsys, "sync")

    assert (code, str(artifact)[:20] in said) == (2, True), said
    assert untouched(outside, artifact)


@pytest.mark.parametrize("column", ["experiments.artifact_location", "runs.artifact_uri"])
def test_sync_leaves_a_folder_alone_that_somebody_elses_database_names(
    outside: Path,
    capsys: pytest.CaptureFixture[str],
    mlflow_store: Callable[[Path], None],
    column: str,
) -> None:
    mlflow_store(RUNS)
    swept()
    assert command(capsys, "sync")[0] == 0
    table, name = column.split(".")
    with sqlite3.connect(RUNS / "mlflow.db") as database:
        database.execute(f"UPDATE {table} SET {name} = ?", [(outside / "folder").as_uri()])

    code, said = command(capsys, "sync")

    assert (code, "that you did not name" in said) == (2, True), said
    assert untouched(outside, outside / "file")


def test_a_server_names_no_folder_unless_the_user_did(
    outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ARTIFACTS_VARIABLE, raising=False)
    away = make_spec(tracking={"uri": "https://mlflow.example"})
    named, elsewhere = outside / "folder" / "1", outside / "folder" / ".." / "1"
    everywhere = [named.as_uri(), str(elsewhere), "mlruns", "runs:/1/a", f"FILE://{named}"]

    for location in everywhere:
        with pytest.raises(PermissionError, match="that you did not name"):
            check_artifacts(location, away)
    assert check_artifacts("mlflow-artifacts:/1/a", away) is None

    monkeypatch.setenv(ARTIFACTS_VARIABLE, (outside / "folder").as_uri())
    assert check_artifacts(named.as_uri(), away) == named
    with pytest.raises(PermissionError):
        check_artifacts(elsewhere.as_uri(), away)
    ours = make_spec(tracking={"uri": "sqlite:///mine.db"})
    assert check_artifacts(str(named), ours) == named
