"""Brings MLflow up with a study that nobody drives."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.core.state import SweepState
from orchestrator.mlflow_tracking.environment import settle_mlflow
from orchestrator.mlflow_tracking.store import store_uri
from search_spaces.errors import StudyError
from search_spaces.extras import require
from search_spaces.facts import ModelFacts
from search_spaces.provenance import Provenance
from search_spaces.spec.addresses import without_password


def add_what_is_missing(
    state: SweepState, model: ModelFacts | None, provenances: Sequence[Provenance] = ()
) -> int:
    """Writes all trials and proofs that MLflow does not hold, and the answer.

    Returns:
        How many there were.

    Raises:
        StudyError: If the store cannot be written.
        MissingExtraError: If MLflow is not installed.
    """
    require("mlflow")
    settle_mlflow()
    # here, since importing mlflow takes seconds
    from orchestrator.mlflow_tracking.client import in_short, tracking_errors
    from orchestrator.mlflow_tracking.writer import StudyWriter

    uri = store_uri(state.spec)
    try:
        writer = StudyWriter(state, model, provenances)
        missing = writer.missing(state)
        writer.describe_workers(state)
        writer.finish(state)
    except tracking_errors() as error:
        told = in_short(error, uri)
        raise StudyError(f"MLflow at {without_password(uri)} cannot be written: {told}") from error
    return missing
