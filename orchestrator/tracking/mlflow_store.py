"""Address of the MLflow store, and of the artifacts beside it. No mlflow here."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from orchestrator.workspace import tracking_uri
from search_spaces.errors import StudyError, require
from search_spaces.spec.redaction import without_password, without_secrets
from search_spaces.spec.schema import SweepSpec

SQLITE = "sqlite:///"
_DATABRICKS = "databricks"  # MLflow's name for the workspace of the default profile
_DATABASES = ("postgresql", "mysql", "mssql", "sqlite")
Made = TypeVar("Made")
_MIGRATIONS = "store/db_migrations/versions"
_REVISION = re.compile(r"^(down_)?revision\s*(?::[^=]*)?=\s*[\"'](\w+)[\"']", re.MULTILINE)


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


def check_database(uri: str) -> None:
    """Looks at a database that is to be MLflow's.

    Raises:
        StudyError: If it cannot be reached, or is of another version or not MLflow's.
    """
    # late: only a database needs it, and it takes a second to import
    from orchestrator.study.storage import DATABASE_ERRORS, reason, revision, tables

    shown = without_password(uri)
    try:
        there, found = tables(uri), revision(uri)
    except ImportError as error:  # of MySQL's or another database's
        raise StudyError(f"the MLflow store {shown} needs a driver: {error}") from error
    except DATABASE_ERRORS as error:
        told = without_secrets(reason(error), uri)
        raise StudyError(f"the MLflow store {shown} cannot be opened: {told}") from error
    _refuse_studies(there, uri)
    _check_revision(found, uri)


def made_once(uri: str, make: Callable[[], Made]) -> Made:
    """What `make` returns, which makes the tables of a database where it finds none.

    One machine does so at a time; MLflow itself sees to the processes of one.
    """
    from orchestrator.study.locks import waiting_lock
    from orchestrator.study.storage import is_postgres, revision

    # the revision comes last: a part of the tables is there long before
    if not is_postgres(uri) or revision(uri) == _revisions()[1]:
        return make()
    with waiting_lock(uri, "mlflow tables"):
        return make()


def _refuse_studies(there: frozenset[str], uri: str) -> None:
    """Optuna keeps its version in a table of the same name: both would stop."""
    if "studies" in there and "experiments" not in there:
        raise StudyError(
            f"the MLflow store {without_password(uri)} is a study's storage: MLflow needs a"
            " database of its own"
        )


def _check_revision(found: str | None, uri: str) -> None:
    known, newest = _revisions()
    if found is None or found == newest or newest is None:
        return
    shown, ours = without_password(uri), f"MLflow {version('mlflow')}"
    if found in known:
        raise StudyError(
            f"the MLflow store {shown} was written by an older MLflow (schema {found}, {ours} has"
            f" {newest}): upgrade it by `mlflow db upgrade {shown}`, when nobody uses it"
        )
    raise StudyError(
        f"the MLflow store {shown} was written by a newer MLflow (schema {found}) than the"
        f" {ours.removeprefix('MLflow ')} that is installed: install the version that the others"
        " use"
    )


def _revisions() -> tuple[frozenset[str], str | None]:
    """All that the installed MLflow knows, and the newest; None if that cannot be told."""
    found = importlib.util.find_spec("mlflow")
    folder = next(iter(found.submodule_search_locations or ()), "") if found else ""
    known, before = set[str](), set[str]()
    for file in Path(folder, _MIGRATIONS).glob("*.py"):
        for down, name in _REVISION.findall(file.read_text(encoding="utf-8")):
            (before if down else known).add(name)
    newest = known - before
    return frozenset(known), newest.pop() if len(newest) == 1 else None
