"""Check before a sweep: can the MLflow store be used?"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.mlflow_tracking.database import check_database
from orchestrator.mlflow_tracking.environment import brief_requests
from orchestrator.mlflow_tracking.store import is_database, is_folder, sqlite_file, store_uri
from search_spaces.errors import MissingExtraError, StudyError
from search_spaces.extras import extra_lack
from search_spaces.spec.addresses import without_password
from search_spaces.spec.schema import SweepSpec


def check_tracking(spec: SweepSpec) -> None:
    """Tries the tracking store, so that a sweep does not start on one that cannot be used.

    A file or a database is looked at; everything else is asked through MLflow's own client, so
    that user and password, token, certificates and the plug-ins of either kind are tried as the
    sweep uses them. Takes seconds at most where a server does not answer.

    Raises:
        StudyError: If it cannot be opened or written.
        MissingExtraError: If MLflow is not installed.
    """
    if not spec.tracking.enabled:
        return
    if lack := extra_lack("mlflow"):
        raise MissingExtraError(f"{lack}, and tracking.enabled: false does without")
    uri = store_uri(spec)
    try:
        _check(uri)
    except ValueError as error:  # of what takes an address apart, or a host's name
        raise StudyError(f"tracking.uri is {without_password(uri)}: {error}") from error


def _check(uri: str) -> None:
    file = sqlite_file(uri)
    if file is not None:
        _check_folder(file.parent)
        if file.exists():
            _check_file(file)
            check_database(uri)
    elif is_folder(uri):
        _check_folder(Path(uri.removeprefix("file://")))
    elif is_database(uri):
        check_database(uri)
    else:
        with brief_requests():
            _check_service(uri)


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"the MLflow store needs the folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StudyError(f"the MLflow store needs to write in {folder}, which is not allowed")


def _check_file(path: Path) -> None:
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        raise StudyError(f"the MLflow store {path} is no file that can be read and written")


def _check_service(uri: str) -> None:
    """Asks a server, or whatever a plug-in of MLflow makes of the address."""
    # late, since importing mlflow takes seconds
    from orchestrator.mlflow_tracking.client import (
        NoSuchStore,
        probe_artifacts,
        probe_store,
        refusal,
        tracking_errors,
    )

    shown = without_password(uri)
    try:
        artifacts = probe_store(uri)
    except NoSuchStore as error:
        raise StudyError(
            f"tracking.uri is {shown}: MLflow has no such store; use sqlite:///..., http://...,"
            " postgresql://... or leave it out"
        ) from error
    except tracking_errors() as error:
        raise StudyError(f"the MLflow server {shown} {refusal(error, uri)}") from error
    try:
        if artifacts is not None:
            probe_artifacts(artifacts, uri)
    except tracking_errors() as error:
        where = without_password(artifacts or "")
        raise StudyError(
            f"the artifact store {where} of the MLflow server {shown} {refusal(error, uri)}"
        ) from error
