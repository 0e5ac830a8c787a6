"""Where a study is kept, and what is wrong with it if it cannot be opened."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import socket
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
from alembic.runtime.migration import MigrationContext
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from sqlalchemy import Engine, create_engine, inspect, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    ProgrammingError,
    SQLAlchemyError,
)
from sqlalchemy.pool import NullPool

from orchestrator.workspace import STORAGE_VARIABLE, study_storage, with_driver
from search_spaces.errors import StudyError, require
from search_spaces.spec.redaction import without_password, without_secrets
from search_spaces.spec.schema import SweepSpec

DATABASE_ERRORS = (SQLAlchemyError,)

_BUSY_SECONDS = 20  # that a SQLite file may be locked by another process
_NAME_BYTES = 63  # of an application's name, as PostgreSQL keeps it
_POSTGRES = {
    "connect_timeout": 10,
    # firewalls forget connections that are silent; a server that is unplugged says nothing
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms until what was sent has to be acknowledged
}
_PSYCOPG = ("postgresql", "postgresql+psycopg")
_READ_ONLY = "25006"  # PostgreSQL: a standby that is about to take over
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


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL database."""
    return url.partition(":")[0].partition("+")[0] == "postgresql"


def engine_options(url: str) -> dict[str, Any]:
    """Arguments of `create_engine` besides the URL.

    Raises:
        MissingExtraError: If the database is PostgreSQL and psycopg is not installed.
    """
    if url.startswith("sqlite:"):
        return {"connect_args": {"timeout": _BUSY_SECONDS}}
    if not is_postgres(url):
        return {"pool_pre_ping": True}
    options = {"pool_pre_ping": True, "pool_size": 2, "connect_args": _connect_arguments(url)}
    if _driver(url) not in _PSYCOPG:
        return options
    require("psycopg")
    from orchestrator.study.postgres import IMPATIENT  # psycopg is no package of everybody's

    return options | {"module": IMPATIENT}


def open_engine(url: str) -> Engine:
    """An engine that keeps no connection of its own."""
    options = {name: value for name, value in engine_options(url).items() if name != "pool_size"}
    return create_engine(with_driver(url), poolclass=NullPool, **options)


def is_away(error: BaseException | None) -> bool:
    """Whether an error is of a database that is not there, and not of what it was asked."""
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) == _READ_ONLY:
        return True
    return isinstance(error, OperationalError | InterfaceError)


def root_of(error: BaseException) -> BaseException:
    """What an error goes back to: the driver's own, below SQLAlchemy's and Optuna's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def reason(error: BaseException) -> str:
    """The first line of what an error goes back to."""
    root = root_of(error)
    return next(iter(str(root).strip().splitlines()), type(root).__name__)


def tables(url: str) -> frozenset[str]:
    """The names of the tables in a database."""
    with _disposed(open_engine(url)) as engine:
        return frozenset(inspect(engine).get_table_names())


def revision(url: str) -> str | None:
    """The schema's revision as Alembic keeps it, None where it keeps none."""
    with _disposed(open_engine(url)) as engine, engine.connect() as connection:
        return MigrationContext.configure(connection).get_current_revision()


def process_name() -> str:
    """Who this is, as others are told: `ann@host, process 4711`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        user = "somebody"
    return f"{user}@{socket.gethostname()}, process {os.getpid()}"


def _connect_arguments(url: str) -> dict[str, Any]:
    """What libpq is told, where the URL does not name them; only of drivers that are libpq's."""
    if _driver(url) not in (*_PSYCOPG, "postgresql+psycopg2"):
        return {}
    name = f"plimsoll {process_name()}".encode()[:_NAME_BYTES].decode(errors="ignore")
    wanted = {**_POSTGRES, "application_name": name}
    return {key: value for key, value in wanted.items() if key not in make_url(url).query}


def _driver(url: str) -> str:
    return make_url(url).drivername


@contextlib.contextmanager
def _disposed(engine: Engine) -> Iterator[Engine]:
    try:
        yield engine
    finally:
        engine.dispose()


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
