"""Validation in the eventful sweep: the plan that looks fastest fails, the next one passes.

Trials cannot see the faults.
"""

from __future__ import annotations

import re

import pytest
from mlflow.tracking import MlflowClient

from orchestrator.core.reasons import Validates
from search_spaces.trial import Measured
from tests.orchestrator.cluster.awkward_model import WIDTH
from tests.orchestrator.cluster.cli import plimsoll
from tests.orchestrator.cluster.conftest import FORGETS, MICRO_BATCHES, SOUND, Eventful


def test_plans_are_validated_from_the_fastest_on_until_one_holds(eventful: Eventful) -> None:
    assert [validation.plan.micro_batch for validation in eventful.validations] == [FORGETS, SOUND]
    for validation in eventful.validations:
        assert validation.validation
        assert validation.number == eventful.by_rows[validation.plan.micro_batch].number
        assert validation.reason == Validates(trial=validation.number)


def test_a_plan_that_trains_something_else_is_caught_by_its_losses(eventful: Eventful) -> None:
    assert isinstance(eventful.validations[0].outcome, Measured)
    number = eventful.validations[0].number
    failed = f"the validation of trial {number} failed: its losses differ by up to"
    assert failed in eventful.log
    assert re.search(r"from those of trial \d over the first \d+ steps", eventful.log)


def test_the_winner_was_run_longer_with_all_that_a_validation_asks_for(eventful: Eventful) -> None:
    trial, validation = eventful.by_rows[SOUND].outcome, eventful.validations[-1].outcome
    assert isinstance(trial, Measured)
    assert isinstance(validation, Measured)
    done = validation.validation

    assert trial.validation is None
    assert done is not None
    assert validation.measured_steps > trial.measured_steps
    assert done.worst_steps == 4
    assert done.evaluation_loss is not None
    weights = 4 * 2 * (WIDTH + 1) * WIDTH
    assert 3 * weights < done.checkpoint_bytes < 3 * weights + 2**14
    assert validation.losses[:3] == pytest.approx(trial.losses[:3], rel=1e-5)


def test_the_report_says_what_was_validated_and_what_failed(eventful: Eventful) -> None:
    winner = eventful.validations[-1].number
    model = eventful.folder / "awkward_model.py"
    model.rename(eventful.folder / "gone.py")  # the study alone is needed
    try:
        report = plimsoll("report", "sweep.yaml", folder=eventful.folder)
    finally:
        (eventful.folder / "gone.py").rename(model)

    assert report.returncode == 0, report.stderr
    for text in (report.stdout, eventful.log):
        told = " ".join(text.split())
        assert f"trial {winner} is best" in told
        assert "validation in a fresh worker group passed" in told
        assert "4 steps on the longest samples, an evaluation on them and a checkpoint" in told
        assert "losses match trial" in told
        assert f"the validation of trial {eventful.validations[0].number} failed" in told
    assert f"best is trial {winner}, validated" in eventful.log


def test_mlflow_has_the_validations_as_runs_of_their_own_kind(eventful: Eventful) -> None:
    client = MlflowClient(eventful.tracking)
    experiment = client.get_experiment_by_name("team")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    found = {
        int(run.data.tags["validation_of"]): run
        for run in runs
        if run.data.tags.get("kind") == "validation"
    }
    (parent,) = (run for run in runs if "mlflow.parentRunId" not in run.data.tags)

    assert sorted(found) == sorted(validation.number for validation in eventful.validations)
    assert [
        found[validation.number].data.tags["validation_holds"]
        for validation in eventful.validations
    ] == [
        "false",
        "true",
    ]
    held = found[eventful.validations[-1].number].data
    assert held.metrics["checkpoint_gib"] > 0
    assert held.metrics["loss_difference"] < 1e-4
    assert parent.data.tags["validated"] == f"trial {eventful.validations[-1].number}"
    trials = [run for run in runs if run.data.tags.get("kind") == "trial"]
    # one died and ran again, and another was run again to check the machine
    assert len(trials) == len(MICRO_BATCHES) + 2
