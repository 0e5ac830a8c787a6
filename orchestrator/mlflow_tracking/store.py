"""Address of the MLflow store, and of the artifacts beside it. No mlflow here."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.workspace import tracking_uri
from search_spaces.extras import require
from search_spaces.spec.schema import SweepSpec

SQLITE = "sqlite:///"
_DATABRICKS = "databricks"  # MLflow's name for the workspace of the default profile
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")


def study_folder(spec: SweepSpec) -> Path:
    """The folder of the project's studies, absolute."""
    return Path(spec.study.folder).expanduser().resolve()


def store_uri(spec: SweepSpec) -> str:
    """The MLflow tracking URI: the one that is named, or SQLite in the folder of the studies."""
    return tracking_uri(spec) or f"{SQLITE}{study_folder(spec) / 'mlflow.db'}"


def artifact_uri(spec: SweepSpec) -> str | None:
    """Where a new experiment keeps its artifacts; None leaves that to a tracking server."""
    if is_server(spec):
        return None
    return (study_folder(spec) / "mlartifacts").as_uri()


def check_artifacts(location: str) -> None:
    """Checks that files can be put where an experiment keeps its artifacts.

    Raises:
        MissingExtraError: If that is S3 and boto3 is not installed.
    """
    if urlsplit(location).scheme == "s3":
        require("boto3")


def is_server(spec: SweepSpec) -> bool:
    """Tells whether the store is a tracking server, which has a UI of its own."""
    return urlsplit(store_uri(spec)).scheme in ("http", "https")


def is_database(uri: str) -> bool:
    """Tells whether the store is a database that this machine opens itself."""
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def is_folder(uri: str) -> bool:
    """Tells whether the store is a folder of files."""
    return urlsplit(uri).scheme in ("", "file") and uri != _DATABRICKS


def sqlite_file(uri: str) -> Path | None:
    """The file of a store on SQLite; None for other stores."""
    if not uri.startswith(SQLITE):
        return None
    return Path(uri.removeprefix(SQLITE).partition("?")[0])
