"""The winner of a real sweep is proven: what looks fastest fails its proof, the next plan holds.

Real Ray, real gloo, real Optuna and MLflow; the faults are such as no trial can see.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.study import load_proofs, load_records
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Record
from search_spaces.spec.load import load_spec
from search_spaces.spec.schema import SweepSpec
from tests.orchestrator.ray import late_model
from tests.orchestrator.ray.cli import plimsoll

# four groups of workers are started: a minute on idle cores, many on a busy machine
SECONDS = 900
pytestmark = pytest.mark.timeout(SECONDS + 60)

SPEC = """
model: late_model:make
cluster: {device: cpu, workers: 2, memory_gib: 0.5}
train: {global_batch: 64, sequence_length: 8, precision: fp32, learning_rate: 0.01}
space: {zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 8, 16, 32]}
objective: {max_seconds: 2, interval: 0.2, max_steps: 12}
proof: {slower: 0.5}
study: {sampler: random}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("late")
    shutil.copy(late_model.__file__, made / "late_model.py")
    (made / "late.yaml").write_text(SPEC)
    return made


@pytest.fixture(scope="module")
def sweep(folder: Path) -> subprocess.CompletedProcess[str]:
    swept = plimsoll("tune", "late.yaml", folder=folder, seconds=SECONDS)
    assert swept.returncode == 0, swept.stdout + swept.stderr
    return swept


def spec_of(folder: Path) -> SweepSpec:
    spec = load_spec(folder / "late.yaml")
    storage = f"sqlite:///{folder}/plimsoll-runs/late/study.db"
    return spec.model_copy(update={"study": spec.study.model_copy(update={"storage": storage})})


@pytest.fixture(scope="module")
def trials(sweep: object, folder: Path) -> dict[int, Record]:
    return {record.plan.micro_batch: record for record in load_records(spec_of(folder), "late")}


@pytest.fixture(scope="module")
def proofs(sweep: object, folder: Path) -> tuple[Record, ...]:
    return load_proofs(spec_of(folder), "late")


def test_all_plans_are_measured_by_trials(trials: dict[int, Record]) -> None:
    rates = {
        rows: trial.outcome.samples_per_second.value
        for rows, trial in trials.items()
        if isinstance(trial.outcome, Measured)
    }

    assert sorted(rates, key=rates.__getitem__) == [1, 8, 16, 32]


def test_plans_are_proven_from_the_fastest_on_until_one_holds(
    trials: dict[int, Record], proofs: tuple[Record, ...]
) -> None:
    assert [proof.plan.micro_batch for proof in proofs] == [
        late_model.FORGETS,
        late_model.SWELLS,
        late_model.SOUND,
    ]
    for proof in proofs:
        assert proof.proof
        assert proof.number == trials[proof.plan.micro_batch].number
        assert proof.why == f"proof of trial {proof.number}"


def test_a_plan_that_trains_something_else_is_caught_by_its_losses(
    sweep: subprocess.CompletedProcess[str], proofs: tuple[Record, ...]
) -> None:
    assert isinstance(proofs[0].outcome, Measured)
    assert f"the proof of trial {proofs[0].number} failed: its losses are up to" in sweep.stdout
    assert re.search(r"apart from those of trial \d in the first \d+ steps", sweep.stdout)


def test_memory_that_an_evaluation_alone_wants_is_found(
    sweep: subprocess.CompletedProcess[str], proofs: tuple[Record, ...]
) -> None:
    outcome = proofs[1].outcome

    assert isinstance(outcome, OutOfMemory)
    assert (outcome.rank, outcome.phase) == (1, "evaluation")
    told = f"the proof of trial {proofs[1].number} failed: out of device memory in evaluation"
    assert told in sweep.stdout


def test_the_winner_was_run_longer_with_all_that_a_proof_asks_for(
    trials: dict[int, Record], proofs: tuple[Record, ...]
) -> None:
    trial, proof = trials[late_model.SOUND].outcome, proofs[-1].outcome
    assert isinstance(trial, Measured)
    assert isinstance(proof, Measured)
    done = proof.proof

    assert trial.proof is None
    assert done is not None
    assert proof.measured_steps > trial.measured_steps
    assert done.worst_steps == 4
    assert done.evaluation_loss is not None
    weights = 4 * 2 * (late_model.WIDTH + 1) * late_model.WIDTH
    assert 3 * weights < done.checkpoint_bytes < 3 * weights + 2**14
    assert proof.losses[:3] == pytest.approx(trial.losses[:3], rel=1e-5)


def test_each_proof_has_workers_of_its_own(sweep: subprocess.CompletedProcess[str]) -> None:
    fresh = "the worker group is replaced: a proof runs in workers of its own"

    assert sweep.stdout.count(fresh) == 3


def test_the_report_says_what_was_proven_and_what_failed(
    sweep: subprocess.CompletedProcess[str], folder: Path, proofs: tuple[Record, ...]
) -> None:
    winner = proofs[-1].number
    report = plimsoll("report", "late.yaml", folder=folder)

    assert report.returncode == 0, report.stderr
    for text in (report.stdout, sweep.stdout):
        told = " ".join(text.split())
        assert f"trial {winner} is best" in told
        assert "proven in workers of its own: the proof holds" in told
        assert "with 4 steps of the longest samples, an evaluation of them and a checkpoint" in told
        assert "losses within" in told
        assert f"the proof of trial {proofs[0].number} failed" in told
    assert f"best is trial {winner}, proven" in sweep.stdout


def test_no_checkpoint_is_left(sweep: object, folder: Path) -> None:
    assert list((folder / "plimsoll-runs").glob("plimsoll-checkpoint*")) == []


def test_mlflow_has_the_proofs_as_runs_of_their_own_kind(
    proofs: tuple[Record, ...], folder: Path
) -> None:
    client = MlflowClient(f"sqlite:///{folder}/plimsoll-runs/mlflow.db")
    experiment = client.get_experiment_by_name("late")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found = {
        int(run.data.tags["proof_of"]): run for run in runs if run.data.tags.get("kind") == "proof"
    }
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)

    assert sorted(found) == sorted(proof.number for proof in proofs)
    assert [found[proof.number].data.tags["proof_holds"] for proof in proofs] == [
        "false",
        "false",
        "true",
    ]
    held = found[proofs[-1].number].data
    assert held.metrics["checkpoint_gib"] > 0
    assert held.metrics["loss_apart"] < 1e-4
    assert parent.data.tags["proven"] == f"trial {proofs[-1].number}"
    assert sum(run.data.tags.get("kind") == "trial" for run in runs) == 4


def test_the_same_command_again_proves_nothing_again(
    proofs: tuple[Record, ...], folder: Path
) -> None:
    again = plimsoll("tune", "late.yaml", folder=folder)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "none of them new" in again.stdout
    assert " starts" not in again.stdout
    assert "proven in workers of its own" in again.stdout
    assert load_proofs(spec_of(folder), "late") == proofs
