"""One real sweep in which plans raise, diverge, die, run out of memory and hang; then it resumes.

Real Ray, real gloo, real Optuna and MLflow; what is looked at is what a user can look at.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from orchestrator.study import load_records
from search_spaces.outcome import Crashed, Diverged, Measured, OutOfMemory, TimedOut
from search_spaces.record import Record
from search_spaces.spec.load import load_spec
from tests.orchestrator.ray import awkward_model
from tests.orchestrator.ray.cli import plimsoll

SPEC = """
model: awkward_model:make
cluster: {device: cpu, workers: 2, memory_gib: 0.5}
train: {global_batch: 64, sequence_length: 8, precision: fp32}
space: {zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 2, 4, 8, 16, 32]}
objective: {max_seconds: 0.5, interval: 0.2}
proof: {enabled: false}
budget: {trials: 20, trial_seconds: 12}
"""
MICRO_BATCHES = (1, 2, 4, 8, 16, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("awkward")
    shutil.copy(awkward_model.__file__, made / "awkward_model.py")
    (made / "awkward.yaml").write_text(SPEC)
    return made


@pytest.fixture(scope="module")
def sweep(folder: Path) -> subprocess.CompletedProcess[str]:
    return plimsoll("tune", "awkward.yaml", folder=folder)


@pytest.fixture(scope="module")
def records(sweep: object, folder: Path) -> dict[int, Record]:
    spec = load_spec(folder / "awkward.yaml")
    storage = f"sqlite:///{folder}/plimsoll-runs/awkward/study.db"
    spec = spec.model_copy(update={"study": spec.study.model_copy(update={"storage": storage})})
    return {record.plan.micro_batch: record for record in load_records(spec, "awkward")}


def test_the_sweep_goes_on_to_its_end(
    sweep: subprocess.CompletedProcess[str], records: dict[int, Record]
) -> None:
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert sorted(records) == list(MICRO_BATCHES)
    assert "Traceback" not in sweep.stdout + sweep.stderr


def test_the_token_that_ray_made_is_for_nobody_else(sweep: object, folder: Path) -> None:
    assert (folder / ".ray" / "auth_token").stat().st_mode & 0o077 == 0


def test_a_good_plan_is_measured(records: dict[int, Record]) -> None:
    outcome = records[1].outcome

    assert isinstance(outcome, Measured)
    assert outcome.measured_steps >= 1  # in half a second of a slow machine
    assert outcome.memory.peak_bytes < outcome.memory.limit_bytes
    assert records[1].fingerprint is not None
    assert records[1].fingerprint.device == "cpu"


def test_a_model_that_raises_is_a_crash_with_its_reason(records: dict[int, Record]) -> None:
    outcome = records[awkward_model.RAISES].outcome

    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.phase) == ("exception", "forward")
    # at the priority that the sweep was started with, not at the one that Ray gives its workers
    assert outcome.detail == f"ValueError: rows of two are not for me at priority {os.nice(0)}"
    assert "awkward_model.py" in outcome.trace


def test_a_loss_that_is_no_number_is_a_divergence(records: dict[int, Record]) -> None:
    outcome = records[awkward_model.DIVERGES].outcome

    assert isinstance(outcome, Diverged)
    assert outcome.loss == "nan"


def test_a_killed_worker_is_a_crash_of_that_worker(records: dict[int, Record]) -> None:
    outcome = records[awkward_model.DIES].outcome

    assert isinstance(outcome, Crashed)
    assert outcome.cause == "worker_died"


def test_one_rank_out_of_memory_is_everybodys(records: dict[int, Record]) -> None:
    outcome = records[awkward_model.TOO_LARGE].outcome

    assert isinstance(outcome, OutOfMemory)  # not TimedOut: the other rank did not wait for it
    assert outcome.where == "device"
    assert outcome.rank == 1
    assert outcome.wanted_bytes is not None
    assert outcome.wanted_bytes >= 2 * 2**30


def test_a_plan_that_hangs_is_ended_at_its_deadline(records: dict[int, Record]) -> None:
    outcome = records[awkward_model.HANGS].outcome

    assert isinstance(outcome, TimedOut)
    assert outcome.deadline_seconds == 12


def test_the_log_has_a_readable_line_for_each(sweep: subprocess.CompletedProcess[str]) -> None:
    assert "\x1b" not in sweep.stdout
    for words in ("out of device memory", "rows of two", "loss was nan", "no end after 12 s"):
        assert words in sweep.stdout
    assert "the worker group is replaced" in sweep.stdout


def test_a_model_that_cannot_be_traced_has_no_forecasts(
    sweep: subprocess.CompletedProcess[str], records: dict[int, Record]
) -> None:
    (told,) = [line for line in sweep.stdout.splitlines() if "no forecast" in line]

    assert "note: trials have no forecast" in told
    assert "rows of two are not for me at priority 5" in told  # the trace steps back
    assert all(record.forecast is None for record in records.values())


def test_mlflow_has_a_run_for_each_trial(records: dict[int, Record], folder: Path) -> None:
    client = MlflowClient(f"sqlite:///{folder}/plimsoll-runs/mlflow.db")
    experiment = client.get_experiment_by_name("awkward")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    nested = [run for run in runs if "mlflow.parentRunId" in run.data.tags]

    cut_short = [run for run in nested if run.data.tags["outcome"] == "cancelled"]
    (died,) = cut_short  # which ran once more
    assert died.data.params["micro_batch"] == str(awkward_model.DIES)
    assert len(runs) == len(nested) + 1
    outcomes = sorted(run.data.tags["outcome"] for run in nested if run is not died)
    assert outcomes == sorted(record.outcome.kind for record in records.values())


def test_nothing_is_left_running(sweep: object, folder: Path) -> None:
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("HOME") == str(folder)
    ]

    assert left == []


@pytest.mark.thorough  # where nothing failed: test_proof.py
def test_the_same_command_again_measures_nothing_again(
    records: dict[int, Record], folder: Path
) -> None:
    again = plimsoll("tune", "awkward.yaml", folder=folder)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "none of them new" in again.stdout
    assert " starts" not in again.stdout


def test_the_report_needs_the_study_alone(records: dict[int, Record], folder: Path) -> None:
    (folder / "awkward_model.py").rename(folder / "gone.py")
    try:
        report = plimsoll("report", "awkward.yaml", folder=folder)
    finally:
        (folder / "gone.py").rename(folder / "awkward_model.py")

    assert report.returncode == 0, report.stderr
    assert "trial 0 is best" in report.stdout
