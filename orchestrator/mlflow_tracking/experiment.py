"""The experiment that a study's runs are in, and the view of it that its page opens with."""

from __future__ import annotations

from mlflow import MlflowClient

from orchestrator.core.state import SweepState
from orchestrator.mlflow_tracking.store import artifact_uri, check_artifacts
from orchestrator.mlflow_tracking.view_state import KIND_TAG, VIEW_TAG, view_state
from orchestrator.report.format import fixed_knobs, may_be_lossy
from orchestrator.workspace import experiment_name


def find_experiment(client: MlflowClient, state: SweepState) -> str:
    """Finds the experiment of the study; makes, restores or gives it a view, if need be.

    Raises:
        MissingExtraError: If it keeps its artifacts in S3 and boto3 is not installed.
    """
    name = experiment_name(state.spec, state.study)
    view = view_state(fixed_knobs(state.space), lossy=may_be_lossy(state.space, state.spec))
    found = client.get_experiment_by_name(name)
    if found is None:
        identity = client.create_experiment(
            name,
            artifact_location=artifact_uri(state.spec),
            tags={VIEW_TAG: view, KIND_TAG[0]: KIND_TAG[1]},
        )
        check_artifacts(client.get_experiment(identity).artifact_location)
        return str(identity)
    check_artifacts(found.artifact_location)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if VIEW_TAG not in found.tags:  # an experiment that was somebody else's first
        client.set_experiment_tag(found.experiment_id, VIEW_TAG, view)
    return str(found.experiment_id)
