"""Brings MLflow up with a study that nobody drives."""

from __future__ import annotations

from orchestrator.core.state import SweepState
from orchestrator.mlflow_tracking.listener import quieten
from orchestrator.mlflow_tracking.store import store_uri
from search_spaces.errors import StudyError
from search_spaces.extras import require
from search_spaces.facts import ModelFacts
from search_spaces.spec.addresses import without_password, without_secrets


def add_what_is_missing(state: SweepState, model: ModelFacts | None) -> int:
    """Writes all trials and proofs that MLflow does not hold, and the answer.

    Returns:
        How many there were.

    Raises:
        StudyError: If the store cannot be written.
        MissingExtraError: If MLflow is not installed.
    """
    require("mlflow")
    quieten()
    # here, since importing mlflow takes seconds
    from orchestrator.mlflow_tracking.writer import TRACKING_ERRORS, StudyWriter

    uri = store_uri(state.spec)
    try:
        writer = StudyWriter(state, model)
        missing = writer.missing(state)
        writer.describe_workers(state)
        writer.finish(state)
    except TRACKING_ERRORS as error:
        told = without_secrets(" ".join(str(error).split())[:300], uri)
        raise StudyError(f"MLflow at {without_password(uri)} cannot be written: {told}") from error
    return missing
