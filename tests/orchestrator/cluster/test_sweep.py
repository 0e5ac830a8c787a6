"""A short sweep under Ray: out of memory, a crash, a killed driver, resumption and a validation.

Its study is in PostgreSQL, and it starts workers twice. What else may happen to a sweep, the
eventful one meets in the thorough run.
"""

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.core.records import Record
from orchestrator.study.reader import load_records, load_state
from search_spaces.specification.load import load_spec
from search_spaces.trial import Crashed, Measured, OutOfMemory
from tests.commands import run_command
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import PLIMSOLL
from tests.rigs.postgres import PASSWORD, QUOTED, Server

RAISES, FASTEST, TOO_LARGE = 2, 16, 64  # micro-batches; the largest one runs out of memory
SPEC = f"""
model:
  name: awkward_model:make
  config: {{pass_seconds: 0.01, raises: {RAISES}, too_large: {TOO_LARGE}}}
cluster: {{device: cpu, workers: 2, memory_gib: 0.5}}
train: {{global_batch: 128, sequence_length: 8, precision: fp32, learning_rate: 0.01}}
space:
  zero_stage: [0]
  checkpoint_ratio: [0.0]
  micro_batch: [1, {RAISES}, {FASTEST}, {TOO_LARGE}]
objective: {{max_seconds: 2, interval: 0.2, max_steps: 12}}
budget: {{trials: 20}}
validation: {{repeats: 0}}
study: {{sampler: random, storage: "STORAGE"}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """A sweep whose first driver was killed in the validation, and that a second one ended.

    Attributes:
        folder: Where it was started.
        trials: By micro-batch.
        validations: As they were run.
        first: Log of the first driver.
        second: Log of the second driver.
        document: What the second one wrote to stdout.
    """

    folder: Path
    trials: dict[int, Record]
    validations: tuple[Record, ...]
    first: str
    second: str
    document: Any


@pytest.fixture(scope="module")
def swept(
    cluster: dict[str, str],
    postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
    mlflow_store: Callable[[Path], None],
) -> Swept:
    """The sweep, run once."""
    folder = tmp_path_factory.mktemp("sweep")
    mlflow_store(folder / "plimsoll-runs")
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "sweep.yaml").write_text(SPEC.replace("STORAGE", postgres.new_database()))
    first = killed_in_validation(folder, cluster)
    second = run_command(
        [PLIMSOLL, "tune", "sweep.yaml", "--json"], folder=folder, environment=cluster
    )
    assert second.returncode == 0, first + second.stderr
    spec = load_spec(folder / "sweep.yaml")
    return Swept(
        folder=folder,
        trials={record.plan.micro_batch: record for record in load_records(spec, "sweep")},
        validations=load_state(spec, "sweep").validations,
        first=first,
        second=second.stderr,
        document=json.loads(second.stdout),
    )


def killed_in_validation(folder: Path, environ: dict[str, str]) -> str:
    """Runs a driver that is killed once its validation has begun; returns its log."""
    driver = subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert driver.stdout is not None
    log = ""
    with driver.stdout as lines:
        for line in lines:
            log += line
            if "] validation of trial" in line:
                driver.kill()
    assert driver.wait(600) == -signal.SIGKILL, log
    return log


def test_every_trial_has_its_own_outcome(swept: Swept) -> None:
    outcomes = {rows: trial.outcome for rows, trial in swept.trials.items()}
    crashed, too_large = outcomes[RAISES], outcomes[TOO_LARGE]

    assert isinstance(outcomes[1], Measured)
    assert isinstance(outcomes[FASTEST], Measured)
    assert isinstance(crashed, Crashed)
    assert (crashed.cause, crashed.phase) == ("exception", "forward")
    # at the priority that the sweep was started with, not at the one that Ray gives its workers
    assert crashed.detail == f"ValueError: rows of two are not for me at priority {os.nice(0)}"
    assert isinstance(too_large, OutOfMemory)  # not TimedOut: the other rank did not wait for it
    assert (too_large.where, too_large.rank) == ("device", 1)
    assert too_large.wanted_bytes is not None
    assert too_large.wanted_bytes >= 2 * 2**30
    for words in ("out of device memory", "rows of two", "starts in a fresh worker group"):
        assert words in swept.first
    assert "Traceback" not in swept.first + swept.second


def test_the_second_driver_measures_nothing_again_and_validates(swept: Swept) -> None:
    (validation,) = swept.validations
    trial = swept.trials[FASTEST].outcome

    assert " trial 0 starts" not in swept.second
    assert validation.number == swept.trials[FASTEST].number
    assert isinstance(trial, Measured)
    assert isinstance(validation.outcome, Measured)
    assert validation.outcome.validation is not None
    assert validation.outcome.validation.checkpoint_bytes > 0
    assert validation.outcome.losses[:3] == pytest.approx(trial.losses[:3], rel=1e-5)
    assert list((swept.folder / "plimsoll-runs").glob("plimsoll-checkpoint*")) == []


def test_the_document_on_stdout_has_the_answer(swept: Swept) -> None:
    result = swept.document["result"]

    assert result["answer"]["trial"] == swept.trials[FASTEST].number
    assert result["answer"]["plan"]["micro_batch"] == FASTEST
    assert result["outcomes"] == {"measured": 2, "crashed": 1, "out_of_memory": 1}
    assert result["other_fingerprints"] is None  # two drivers on one machine
    fingerprint = swept.trials[FASTEST].fingerprint
    assert fingerprint is not None
    assert fingerprint.launches is not None
    assert dict(fingerprint.environment)["MALLOC_ARENA_MAX"] == "1"  # of Plimsoll's workers


def test_mlflow_has_a_run_for_each_trial_and_the_validation(swept: Swept) -> None:
    client = MlflowClient(f"sqlite:///{swept.folder}/plimsoll-runs/mlflow.db")
    experiment = client.get_experiment_by_name("sweep")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    nested = [run.data for run in runs if "mlflow.parentRunId" in run.data.tags]
    (parent,) = (run.data for run in runs if "mlflow.parentRunId" not in run.data.tags)

    trials = [data.tags["outcome"] for data in nested if data.tags["kind"] == "trial"]
    assert sorted(trials) == ["crashed", "measured", "measured", "out_of_memory"]
    held = [data.tags["validation_holds"] for data in nested if data.tags["kind"] == "validation"]
    assert "true" in held
    assert parent.tags["validated"] == f"trial {swept.trials[FASTEST].number}"


def test_no_password_is_left(swept: Swept) -> None:
    (swept.folder / "sweep.yaml").unlink()  # which has it
    texts = [path.read_text(errors="replace") for path in swept.folder.rglob("*") if path.is_file()]

    for text in (swept.first, swept.second, json.dumps(swept.document), *texts):
        assert PASSWORD not in text
        assert QUOTED not in text
