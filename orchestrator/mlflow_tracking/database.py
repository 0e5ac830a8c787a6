"""A database as MLflow's store: whether it can be reached, and is of a version that is known here.

No mlflow here: what its migrations are is read from its files, since importing it takes seconds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sqlite3
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from search_spaces.errors import StudyError
from search_spaces.spec.addresses import without_password, without_secrets

Made = TypeVar("Made")

_SQLITE = "sqlite:///"
_CONNECT_SECONDS = 5.0
_MIGRATIONS = "store/db_migrations/versions"
_REVISION = re.compile(r"^(down_)?revision\s*(?::[^=]*)?=\s*[\"'](\w+)[\"']", re.MULTILINE)
_SWEEP = """
SELECT runs.run_uuid FROM runs
JOIN tags AS kind ON kind.run_uuid = runs.run_uuid AND kind.key = 'plimsoll.sweep'
JOIN tags AS study ON study.run_uuid = runs.run_uuid AND study.key = 'plimsoll.study'
WHERE runs.experiment_id = CAST(:experiment AS INTEGER)
AND runs.lifecycle_stage = 'active' AND study.value = :study
ORDER BY runs.start_time DESC
"""
_EXPERIMENT = "SELECT experiment_id FROM experiments WHERE name = :name"


def check_database(uri: str) -> None:
    """Looks at a database that is to be MLflow's.

    Raises:
        StudyError: If it cannot be reached, or is of another version or not MLflow's.
    """
    # late: only a database needs it, and it takes a second to import
    from orchestrator.study.databases import DATABASE_ERRORS, reason, revision, tables

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


def check_sqlite_revision(connection: sqlite3.Connection, uri: str) -> None:
    """The same of the version of a SQLite file that is open."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    _refuse_studies(frozenset(name for (name,) in connection.execute(query)), uri)
    found = None
    with contextlib.suppress(sqlite3.OperationalError):  # a file that MLflow has not used yet
        found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    _check_revision(None if found is None else str(found[0]), uri)


def experiment_id(uri: str, name: str) -> str | None:
    """Which experiment a store has under a name; None if it has none, or cannot be asked."""
    return _looked_up(uri, _EXPERIMENT, name=name)


def sweep_run_id(uri: str, experiment: str, study: str) -> str | None:
    """The run of a study, of several the latest; None if there is none, or it cannot be asked."""
    return _looked_up(uri, _SWEEP, experiment=experiment, study=study)


def _looked_up(uri: str, query: str, **given: str) -> str | None:
    from orchestrator.study.databases import DATABASE_ERRORS, first_value

    if uri.startswith(_SQLITE) and not Path(uri.removeprefix(_SQLITE)).is_file():
        return None
    with contextlib.suppress(*DATABASE_ERRORS):  # no page is lost for want of a shortcut to it
        found = first_value(uri, query, **given)
        return None if found is None else str(found)
    return None


def made_once(uri: str, make: Callable[[], Made]) -> Made:
    """What `make` returns, which makes the tables of a database where it finds none.

    One machine does so at a time; MLflow itself sees to the processes of one.
    """
    from orchestrator.study.databases import is_postgres, revision
    from orchestrator.study.locks import waiting_lock

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
