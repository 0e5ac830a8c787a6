"""Where a study is kept, and what is wrong with it if it cannot be opened."""

from __future__ import annotations

import contextlib
import re
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy.exc import (
    ArgumentError,
    IntegrityError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)

from orchestrator.places import STORAGE_VARIABLE, study_storage, with_driver
from orchestrator.study.databases import engine_options, reason, root_of, tables
from search_spaces.errors import StudyError
from search_spaces.spec.addresses import without_password, without_secrets
from search_spaces.spec.schema import SweepSpec

STUDY_FILE = "study.db"  # in a study's folder, where nothing names a storage
_SQLITE = "sqlite:///"
_STUDIES = "studies"  # a table of Optuna's that is as old as its storages
_LAST = {"alembic_version"}  # made when all else is there
_MLFLOW = "experiments"  # one of MLflow's
_ATTEMPTS = 20  # to open a storage that others are making
# ValueError: of the drivers themselves, as of a host's name that no codec takes
_OPENING_ERRORS = (
    *(ArgumentError, SQLAlchemyError, StorageInternalError),
    *(OSError, ImportError, ValueError),
)


def storage_url(spec: SweepSpec, name: str) -> str:
    """Where the study is kept: the storage that is named, or SQLite in the study's own folder."""
    return study_storage(spec) or f"{_SQLITE}{Path(spec.study.folder, name, STUDY_FILE)}"


def sqlite_path(url: str) -> Path | None:
    """The file of a SQLite storage, None of any other and of one in memory."""
    path = url.removeprefix(_SQLITE).partition("?")[0]
    return Path(path) if url.startswith(_SQLITE) and path not in ("", ":memory:") else None


def holds_studies(url: str) -> bool:
    """Whether a study was ever kept there; makes nothing."""
    path = sqlite_path(url)
    return (path is None or path.exists()) and _STUDIES in tables(url)


@contextlib.contextmanager
def brief_storage(url: str) -> Iterator[RDBStorage]:
    """A storage for the length of the block; a shared database has only so many connections.

    Raises:
        StudyError: If it was written by another version of Optuna.
    """
    storage = open_storage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def open_storage(url: str) -> RDBStorage:
    """Optuna's storage; its tables are made, or its SQLite file and the folder too.

    Its connections are closed when nobody has it any more.

    Raises:
        StudyError: If it was written by another version of Optuna.
    """
    if (path := sqlite_path(url)) is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        there = tables(url)
        _refuse_mlflows(url, there)
        try:
            storage = _storage(url, make=_STUDIES not in there)
        except (IntegrityError, ProgrammingError, OperationalError) as error:
            # processes that make the tables at the same time get in each other's way
            if there >= _LAST or attempt + 1 == _ATTEMPTS or not _is_there_already(error):
                raise
            time.sleep(0.05 * (attempt + 1))
        else:
            weakref.finalize(storage, storage.engine.dispose)
            _check_version(storage, url)
            return storage
    raise AssertionError("the last attempt returns or raises")


class _Storage(RDBStorage):
    """Leaves no connection open where its tables cannot be made."""

    def __init__(self, *given: Any, **more: Any) -> None:
        try:
            super().__init__(*given, **more)
        except SQLAlchemyError:
            # there is none yet where the address itself was the fault
            if (engine := getattr(self, "engine", None)) is not None:
                engine.dispose()
            raise


def _storage(url: str, *, make: bool) -> RDBStorage:
    return _Storage(
        with_driver(url)
        .replace("{", "{{")
        .replace("}", "}}"),  # Optuna fills in what stands between them
        engine_kwargs=engine_options(url),
        skip_table_creation=not make,  # an older schema must not get newer tables
        skip_compatibility_check=True,  # `_check_version` says more
    )


def _is_there_already(error: SQLAlchemyError) -> bool:
    return isinstance(error, IntegrityError) or "already exists" in str(error)


def _refuse_mlflows(url: str, there: frozenset[str]) -> None:
    """Both keep their schema's version in a table of one name, and stop at each other's."""
    if _MLFLOW in there and _STUDIES not in there:
        raise StudyError(
            f"study.storage {shown_url(url)} is MLflow's database: the study needs one of its own"
        )


def _check_version(storage: RDBStorage, url: str) -> None:
    current, newest = storage.get_current_version(), storage.get_head_version()
    if current == newest:
        return
    shown = shown_url(url)
    if current in storage.get_all_versions():
        raise StudyError(
            f"study.storage {shown} was written by an older Optuna (schema {current}, Optuna"
            f" {optuna.__version__} has {newest}): upgrade it by"
            f" `optuna storage upgrade --storage {without_password(url)}`, when no sweep uses it"
        )
    raise StudyError(
        f"study.storage {shown} was written by a newer Optuna (schema {current}) than the"
        f" {optuna.__version__} that is installed, which knows schemas up to {newest}: install the"
        " version that the others use"
    )


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns what a storage that cannot be opened raises into a sentence, without credentials."""
    try:
        yield
    except _OPENING_ERRORS as error:
        raise StudyError(
            f"study.storage {shown_url(url)} cannot be opened: {storage_reason(error, url)}"
        ) from error


def storage_reason(error: BaseException, url: str) -> str:
    """What went wrong, in a line without credentials."""
    if isinstance(root := root_of(error), ImportError) and root.name:
        return f"its driver, the Python package {root.name}, is not installed"
    line = without_secrets(reason(error).replace(url, shown_url(url)), url)
    if "no password supplied" in line:
        return f"{line}; copies of a specification hold none: name it by {STORAGE_VARIABLE}"
    return line


def shown_url(url: str) -> str:
    """Scheme, host and path: no user, and no query either, which may hold a password."""
    return re.sub(r"[^/]*@|\?.*$", "", without_password(url))
