"""Address of the MLflow store and its artifacts, found without importing mlflow."""

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.workspace import check_files, tracking_uri
from search_spaces.errors import StudyError, TrackingLost, require
from search_spaces.safety.files import real_path, with_home
from search_spaces.safety.redaction import without_password, without_secrets
from search_spaces.specification.schema import SweepSpec

SQLITE = "sqlite:///"
ARTIFACTS_VARIABLE = "MLFLOW_DEFAULT_ARTIFACT_ROOT"  # of `mlflow server`
_DATABRICKS = "databricks"  # MLflow's address for the workspace of the default profile
_LOCAL = ("", "file", "runs", "models")  # the last two name others
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")


def study_folder(spec: SweepSpec) -> Path:
    """Returns the absolute path of the folder of studies."""
    return real_path(with_home(spec.study.folder))


def store_uri(spec: SweepSpec) -> str:
    """Returns the MLflow tracking URI of the specification, or else SQLite in the study folder."""
    if (named := tracking_uri(spec)) is not None:
        return named
    check_files(spec, "mlflow.db")
    return f"{SQLITE}{study_folder(spec) / 'mlflow.db'}"


def artifact_uri(spec: SweepSpec) -> str | None:
    """Returns the artifact location of a new experiment; None if a tracking server decides it."""
    if is_server(spec):
        return None
    return (study_folder(spec) / "mlartifacts").as_uri()


def check_artifacts(location: str, spec: SweepSpec) -> Path | None:
    """Checks that artifacts may be written at a location; returns its folder if it is a local one.

    A server names no folder here, and a database that came with studies none outside of theirs.

    Raises:
        MissingExtraError: If the location is S3 and boto3 is not installed.
        PermissionError: If it is a folder that the user did not name.
    """
    parts = urlsplit(location)
    if parts.scheme == "s3":
        require("boto3")
    if parts.scheme not in _LOCAL:
        return None
    folder = Path(os.path.abspath(unquote(parts.path) if parts.scheme else location))  # noqa: PTH100
    named = "/"  # a store of the user's choice may keep them anywhere
    if is_server(spec):
        named = os.environ.get(ARTIFACTS_VARIABLE, "").removeprefix("file://")
    elif tracking_uri(spec) is None:
        named = str(study_folder(spec))
    if named and real_path(folder).is_relative_to(real_path(with_home(named))):
        return folder
    raise PermissionError(
        f"{location} is a folder of this machine that you did not name: let the server serve its"
        f" artifacts (--artifacts-destination), or set {ARTIFACTS_VARIABLE} to that folder"
    )


def is_server(spec: SweepSpec) -> bool:
    """Returns True if the store is a tracking server, which has a UI of its own."""
    return urlsplit(store_uri(spec)).scheme in ("http", "https")


def is_database(uri: str) -> bool:
    """Returns True if the store is a database that this machine opens itself."""
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def is_folder(uri: str) -> bool:
    """Returns True if the store is a folder of files."""
    return urlsplit(uri).scheme in ("", "file") and uri != _DATABRICKS


def sqlite_file(uri: str) -> Path | None:
    """Returns the file of a SQLite store; None for other stores."""
    if not uri.startswith(SQLITE):
        return None
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def check_database(uri: str) -> None:
    """Checks a database for MLflow.

    Raises:
        TrackingLost: If its server does not answer now, or its disk fails or is full.
        StudyError: If it cannot be used otherwise, or belongs to a study.
    """
    # imported here: only a database needs it, and importing takes a second
    from orchestrator.study.storage import DATABASE_ERRORS, is_server_away, reason, tables

    address = without_password(uri)
    try:
        table_names = tables(uri)
    except ImportError as error:  # the driver of MySQL or another database
        raise StudyError(f"the MLflow store {address} needs a driver: {error}") from error
    except DATABASE_ERRORS as error:
        message = without_secrets(reason(error), uri)
        kind = TrackingLost if is_server_away(error) else StudyError
        raise kind(f"the MLflow store {address} cannot be opened: {message}") from error
    # Optuna and MLflow store their version in a table of the same name, so neither would work
    if "studies" in table_names and "experiments" not in table_names:
        raise StudyError(
            f"the MLflow store {address} is a study's storage: MLflow needs a database of its own"
        )
