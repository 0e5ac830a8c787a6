"""`plimsoll sync` adds missing trials to MLflow, once, from the study alone."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.study.locks import exclusive_driver
from orchestrator.study.study import Study
from orchestrator.workspace import save_spec
from search_spaces.specification.schema import SweepSpec
from tests.orchestrator.cli.commands import command
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.records import make_space, make_spec
from tests.orchestrator.tracking.test_mlflow import PROVENANCE, client_of, runs_of
from tests.outcomes import make_measured, make_oom

OUTCOMES = (make_measured(20.0, 0.3), make_oom(), make_measured(39.5, 0.5))


@pytest.fixture(autouse=True)
def _folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mlflow_store: Callable[[Path], None]
) -> None:
    """A new folder with a migrated store."""
    monkeypatch.chdir(tmp_path)
    mlflow_store(tmp_path / "plimsoll-runs")


def swept(**sections: Any) -> SweepSpec:
    """Runs a sweep that MLflow does not know."""
    budget = {"trials": len(OUTCOMES), "minutes": 10, "trial_seconds": 60}
    ours = Sweep(make_spec(budget=budget, **sections))
    study = Study(ours.spec, "demo", make_space(ours.spec))
    study.keep_provenance(replace(PROVENANCE, at=0.0))
    save_spec(ours.spec, "demo")
    ours.run(iter(OUTCOMES))
    return ours.spec


def test_all_trials_are_there_afterwards_and_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = swept()

    first = command(capsys, "sync")
    parents, trials = runs_of(spec, "demo")
    client_of(spec).delete_run(trials[1].info.run_id)  # as if it had not been written
    second = command(capsys, "sync")

    assert [code for code, _ in (first, second)] == [0, 0]
    assert "has all 3 trials and 0 validations of demo; added now: 3" in first[1]
    assert "added now: 1" in second[1]
    again, all_trials = runs_of(spec, "demo")
    assert [run.info.run_id for run in again] == [run.info.run_id for run in parents]
    assert [run.data.tags["outcome"] for run in all_trials] == [
        "measured",
        "out_of_memory",
        "measured",
    ]
    assert {run.info.status for run in again} == {"FINISHED"}
    for run in (*again, *all_trials):  # as the driver left them, not as they are here
        assert run.data.tags["mlflow.source.git.commit"] == "c" * 40
        assert [one.dataset.digest for one in run.inputs.dataset_inputs] == ["0123456789abcdef"]


def test_a_study_that_is_driven_is_left_to_its_driver(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = swept()

    with exclusive_driver(spec, "demo"):
        code, said = command(capsys, "sync")

    assert code == 2
    assert "is being tuned by another driver" in said


def test_a_sweep_that_is_not_tracked_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(tracking={"enabled": False})

    assert command(capsys, "sync") == (
        2,
        "tracking.enabled is false: this sweep is not tracked in MLflow",
    )
