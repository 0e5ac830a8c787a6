"""Where the tracking store is, whether it can be used, and how to look at it. No mlflow here."""

from __future__ import annotations

import base64
import os
import sqlite3
import sys
import urllib.error
import urllib.request
from contextlib import closing
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.mlflow_tracking.database import (
    check_database,
    check_sqlite_revision,
    experiment_id,
    sweep_run_id,
)
from orchestrator.mlflow_tracking.view_state import KIND_QUERY, VIEW_QUERY
from orchestrator.places import tracking_uri, with_driver
from search_spaces.errors import MissingExtraError, StudyError
from search_spaces.extras import extra_lack, require
from search_spaces.spec.addresses import without_password
from search_spaces.spec.schema import SweepSpec

_SQLITE = "sqlite:///"
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")
_CONNECT_SECONDS = 5.0
_EXPERIMENTS = "/api/2.0/mlflow/experiments/search?max_results=1"
# Credentials that plug-ins of mlflow find in ways of their own; we cannot try those.
_PLUGIN_CREDENTIALS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")


def study_folder(spec: SweepSpec) -> Path:
    """The folder of the project's studies, absolute."""
    return Path(spec.study.folder).expanduser().resolve()


def store_uri(spec: SweepSpec) -> str:
    """The MLflow tracking URI: the one that is named, or SQLite in the folder of the studies."""
    return tracking_uri(spec) or f"{_SQLITE}{study_folder(spec) / 'mlflow.db'}"


def artifact_uri(spec: SweepSpec) -> str | None:
    """Where a new experiment keeps its artifacts; None leaves that to a tracking server."""
    if is_server(spec):
        return None
    return (study_folder(spec) / "mlartifacts").as_uri()


def check_artifacts(location: str) -> None:
    """Looks whether files can be put where an experiment keeps its artifacts.

    Raises:
        MissingExtraError: If that is S3 and boto3 is not installed.
    """
    if urlsplit(location).scheme == "s3":
        require("boto3")


def is_server(spec: SweepSpec) -> bool:
    """Whether the store is a tracking server, which has a UI of its own."""
    return urlsplit(store_uri(spec)).scheme in ("http", "https")


def ui_command(spec: SweepSpec, *, port: int = 5000) -> list[str]:
    """The arguments of a process that shows the store: MLflow's UI, on this machine alone.

    One server process: the default of four holds over 1 GiB. Where the store is a tracking
    server, its page is opened in the browser instead.

    Raises:
        MissingExtraError: If MLflow is to be started and is not installed.
    """
    if is_server(spec):
        return [sys.executable, "-m", "webbrowser", without_password(store_uri(spec))]
    require("mlflow")
    artifacts = artifact_uri(spec)
    assert artifacts is not None
    command = [sys.executable, "-m", "mlflow", "ui"]
    if _holds_no_secret(spec):
        command += ["--backend-store-uri", store_uri(spec)]
    command += ["--default-artifact-root", artifacts]
    return [*command, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]


def ui_environment(spec: SweepSpec) -> dict[str, str]:
    """All that process has in its environment; its arguments can be seen by everybody.

    Jobs, with which a server judges answers of language models, are off unless they were asked
    for: their queues stay in shared memory if the server is killed.
    """
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ}
    if not (is_server(spec) or _holds_no_secret(spec)):
        environment["MLFLOW_BACKEND_STORE_URI"] = with_driver(store_uri(spec))
    return environment


def _holds_no_secret(spec: SweepSpec) -> bool:
    return store_uri(spec).startswith(_SQLITE)


def ui_address(spec: SweepSpec, study: str, *, port: int = 5000) -> str:
    """The page of the sweep in the UI, with the columns that tell plans apart.

    Without the view if the store holds no such experiment yet, or is no database.
    """
    home = f"http://127.0.0.1:{port}"
    uri, name = store_uri(spec), spec.tracking.experiment or study
    if is_server(spec) or not _is_database(uri):
        return without_password(uri) if is_server(spec) else home
    identity = experiment_id(uri, name)
    return home if identity is None else f"{home}/#/experiments/{identity}/runs?{VIEW_QUERY}"


def answer_address(spec: SweepSpec, study: str, *, port: int = 5000) -> str | None:
    """The page of the sweep's own run, with the answer; None where that cannot be told."""
    uri, name = store_uri(spec), spec.tracking.experiment or study
    if is_server(spec) or not _is_database(uri):
        return None
    experiment = experiment_id(uri, name)
    run = experiment and sweep_run_id(uri, experiment, study)
    page = f"#/experiments/{experiment}/runs/{run}?{KIND_QUERY}"
    return f"http://127.0.0.1:{port}/{page}" if run else None


def check_tracking(spec: SweepSpec) -> None:
    """Tries the tracking store, so that a sweep does not start on one that cannot be used.

    Takes milliseconds for a file, seconds at most for a server that does not answer.

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
    scheme = urlsplit(uri).scheme
    if uri.startswith(_SQLITE):
        _check_sqlite(Path(uri.removeprefix(_SQLITE).partition("?")[0]))
    elif scheme in ("http", "https"):
        _check_server(uri)
    elif scheme in ("", "file"):
        _check_folder(Path(uri.removeprefix("file://")))
    elif _is_database(uri):
        check_database(uri)
    elif not scheme.startswith("databricks"):
        shown = without_password(uri)
        raise StudyError(
            f"tracking.uri is {shown}: MLflow has no such store; use sqlite:///..., http://...,"
            " postgresql://... or leave it out"
        )


def _is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def _check_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StudyError(f"the MLflow store needs the folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StudyError(f"the MLflow store needs to write in {folder}, which is not allowed")


def _check_sqlite(path: Path) -> None:
    _check_folder(path.parent)
    if not path.exists():
        return
    if not path.is_file() or not os.access(path, os.R_OK | os.W_OK):
        raise StudyError(f"the MLflow store {path} is no file that can be read and written")
    try:
        with closing(sqlite3.connect(path, timeout=_CONNECT_SECONDS)) as connection:
            connection.execute("PRAGMA schema_version").fetchone()
            check_sqlite_revision(connection, f"{_SQLITE}{path}")
    except sqlite3.Error as error:
        raise StudyError(f"the MLflow store {path} cannot be opened: {error}") from error


def _check_server(uri: str) -> None:
    parts = urlsplit(uri)
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    request = urllib.request.Request(address + _EXPERIMENTS)
    if credentials := _credentials(uri):
        request.add_header("Authorization", credentials)
    try:
        # not /health: it answers even where the server refuses the name we call it by
        urllib.request.urlopen(request, timeout=_CONNECT_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in (401, 403) and any(map(os.environ.get, _PLUGIN_CREDENTIALS)):
            return
        raise StudyError(_refusal(without_password(uri), error.code)) from error
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise StudyError(
            f"the MLflow server {without_password(uri)} does not answer: {reason}"
        ) from error


def _refusal(shown: str, code: int) -> str:
    advice = {
        401: "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
        403: "it wants other credentials, or to be started with --allowed-hosts for this name",
        404: "tracking.uri must be the address of an MLflow server",
    }
    told = advice.get(code, "see its log")
    return f"the MLflow server {shown} answered {code}: {told}"


def _credentials(uri: str) -> str | None:
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return f"Bearer {token}"
    parts = urlsplit(uri)
    user = os.environ.get("MLFLOW_TRACKING_USERNAME") or parts.username
    if not user:
        return None
    password = os.environ.get("MLFLOW_TRACKING_PASSWORD") or parts.password or ""
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
