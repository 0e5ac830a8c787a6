"""The eventful sweep: plans raise, diverge, die, run out of memory and hang; the sweep continues.

Real Ray, gloo, Optuna and MLflow; the tests inspect what a user can see.
"""

from __future__ import annotations

import os

from mlflow.tracking import MlflowClient

from orchestrator.core.reasons import ChecksMachine
from search_spaces.trial import Crashed, Diverged, Measured, TimedOut
from tests.orchestrator.cluster.conftest import (
    DEADLINE_SECONDS,
    DIES,
    DIVERGES,
    HANGS,
    MICRO_BATCHES,
    Eventful,
)


def test_the_sweep_goes_on_to_its_end(eventful: Eventful) -> None:
    assert sorted(record.plan.micro_batch for record in eventful.trials) == list(MICRO_BATCHES)
    assert "Traceback" not in eventful.log, eventful.log


def test_a_loss_that_is_no_number_is_a_divergence(eventful: Eventful) -> None:
    outcome = eventful.by_rows[DIVERGES].outcome

    assert isinstance(outcome, Diverged)
    assert outcome.loss == "nan"


def test_a_killed_worker_is_a_crash_of_that_worker(eventful: Eventful) -> None:
    outcome = eventful.by_rows[DIES].outcome

    assert isinstance(outcome, Crashed)
    assert outcome.cause == "worker_died"
    (check,) = eventful.checks  # it died twice: a measured plan has shown that the machine works
    assert isinstance(check.reason, ChecksMachine)
    assert check.reason.suspect == eventful.by_rows[DIES].number
    assert isinstance(check.outcome, Measured)


def test_a_plan_that_hangs_is_ended_at_its_deadline(eventful: Eventful) -> None:
    outcome = eventful.by_rows[HANGS].outcome

    assert isinstance(outcome, TimedOut)
    assert outcome.deadline_seconds == DEADLINE_SECONDS


def test_the_log_has_a_readable_line_for_each(eventful: Eventful) -> None:
    assert "\x1b" not in eventful.log
    for words in ("out of device memory", "rows of two", "loss was nan", "timed out after 12 s"):
        assert words in eventful.log
    assert "the worker group is replaced" in eventful.log


def test_a_model_that_cannot_be_traced_has_no_forecasts(eventful: Eventful) -> None:
    (told,) = [line for line in eventful.log.splitlines() if "no forecast" in line]

    assert "note: trials have no forecast" in told
    said, _, priority = told.rpartition(" ")
    assert said.endswith("rows of two are not for me at priority")
    assert int(priority) > os.nice(0)  # the trace steps back
    assert all(record.forecast is None for record in eventful.trials)


def test_mlflow_has_a_run_for_each_trial(eventful: Eventful) -> None:
    client = MlflowClient(eventful.tracking)
    experiment = client.get_experiment_by_name("team")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    nested = [run for run in runs if run.data.tags.get("kind") == "trial"]

    cut_short = [run for run in nested if run.data.tags["outcome"] == "cancelled"]
    (died,) = cut_short  # which ran once more
    assert died.data.params["micro_batch"] == str(DIES)
    outcomes = sorted(run.data.tags["outcome"] for run in nested if run is not died)
    ended = (*eventful.trials, *eventful.checks)
    assert outcomes == sorted(record.outcome.kind for record in ended)
