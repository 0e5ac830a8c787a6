"""Check of the MLflow store before a sweep."""

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
from search_spaces.errors import MissingExtraError, StudyError, TrackingLost, missing_extra
from search_spaces.safety.files import packaged_table
from search_spaces.safety.redaction import without_password
from search_spaces.specification.schema import SweepSpec

_TABLE = packaged_table(__package__, "mlflow.yaml")
_REQUESTS, _BRIEF = _TABLE["requests"], _TABLE["brief_requests"]


def configure_mlflow() -> None:
    """Sets MLflow's environment before it is imported; keeps variables that the user set."""
    for name, value in (_TABLE["import"] | _REQUESTS).items():
        os.environ.setdefault(name, value)
    for name, level in _TABLE["loggers"].items():
        logging.getLogger(name).setLevel(level)


@contextlib.contextmanager
def brief_requests() -> Iterator[None]:
    """Limits requests to seconds while a user waits; keeps variables that the user set."""
    configure_mlflow()
    defaults = [name for name, value in _REQUESTS.items() if os.environ[name] == value]
    os.environ.update({name: _BRIEF[name] for name in defaults})
    try:
        yield
    finally:
        os.environ.update({name: _REQUESTS[name] for name in defaults})


def check_tracking(spec: SweepSpec) -> None:
    """Checks the tracking store, so that no sweep starts with an unusable one.

    Files and databases are checked directly. Everything else is checked through MLflow's own
    client, with the credentials, certificates and plug-ins that the sweep uses. A server that does
    not answer takes a few seconds.

    Raises:
        TrackingLost: If the store does not answer now, or answers with errors of its own.
        StudyError: If the store cannot be opened or written.
        MissingExtraError: If MLflow is not installed.
    """
    if not spec.tracking.enabled:
        return
    if lack := missing_extra("mlflow"):
        raise MissingExtraError(f"{lack}; or turn tracking off with tracking.enabled: false")
    uri = store_uri(spec)
    try:
        _check(uri)
    except ValueError as error:  # an address or a host name that cannot be parsed
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
        raise StudyError(f"the MLflow store cannot write in {folder}: permission denied")


def _check_file(path: Path) -> None:
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        raise StudyError(f"the MLflow store {path} is not a readable and writable file")


def _check_service(uri: str) -> None:
    """Checks a server, or a store that a plug-in of MLflow provides, and its artifacts."""
    # imported here, because importing mlflow takes seconds
    from mlflow.artifacts import list_artifacts

    from orchestrator.tracking.mlflow_client import (
        NoSuchStore,
        is_away,
        open_client,
        refusal,
        tracking_errors,
    )

    address = without_password(uri)
    try:
        experiments = open_client(uri).search_experiments(max_results=1)
    except NoSuchStore as error:
        raise StudyError(
            f"tracking.uri is {address}: MLflow has no such store; use sqlite:///..., http://...,"
            " postgresql://... or leave it out"
        ) from error
    except tracking_errors() as error:
        kind = TrackingLost if is_away(error) else StudyError
        raise kind(f"the MLflow server {address} {refusal(error, uri)}") from error
    if not experiments:  # none is visible
        return
    location = experiments[0].artifact_location
    try:  # with the credentials that a sweep uses to write them
        list_artifacts(artifact_uri=location, tracking_uri=uri)
    except tracking_errors() as error:
        store, kind = without_password(location), TrackingLost if is_away(error) else StudyError
        raise kind(
            f"the artifact store {store} of the MLflow server {address} {refusal(error, uri)}"
        ) from error
