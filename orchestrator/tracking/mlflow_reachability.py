"""Check before a sweep: can the MLflow store be used?"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from orchestrator.tracking.mlflow_store import (
    check_database,
    is_database,
    is_folder,
    sqlite_file,
    store_uri,
)
from search_spaces.errors import MissingExtraError, StudyError, extra_lack
from search_spaces.spec.redaction import without_password
from search_spaces.spec.schema import SweepSpec

# Read by MLflow when it is imported. Without them it sends telemetry.
_SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_LOGGING_LEVEL": "ERROR",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # of each run, where a server has a page
}
# Read at each request. Without them MLflow asks a server that is gone for minutes.
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}
_PROBE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
_NOISY_LOGGERS = {
    "mlflow": logging.ERROR,
    "mlflow.store.db.utils": logging.CRITICAL,  # a database that is away is told as our own note
    "alembic": logging.ERROR,
}


def settle_mlflow() -> None:
    """Sets MLflow's environment before it is imported; what the user has set stays."""
    for name, value in (_SETTINGS | _REQUESTS).items():
        os.environ.setdefault(name, value)
    for name, level in _NOISY_LOGGERS.items():
        logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def brief_requests() -> Iterator[None]:
    """Bounds a request to some seconds while somebody waits; what the user has set stays."""
    settle_mlflow()
    ours = [name for name, value in _REQUESTS.items() if os.environ[name] == value]
    os.environ.update({name: _PROBE[name] for name in ours})
    try:
        yield
    finally:
        os.environ.update({name: _REQUESTS[name] for name in ours})


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
    from orchestrator.tracking.mlflow_client import (
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
