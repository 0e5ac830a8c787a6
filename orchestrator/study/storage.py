"""Storages of studies: SQLite files and databases, and messages for those that fail to open."""

import contextlib
import getpass
import os
import re
import socket
import sqlite3
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import optuna
from optuna.exceptions import StorageInternalError
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage
from sqlalchemy import Engine, create_engine, exc, inspect, make_url
from sqlalchemy.pool import NullPool

from orchestrator.study.optuna_private import StudyStorage
from orchestrator.workspace import STORAGE_VARIABLE, check_files, study_storage, with_driver
from search_spaces.errors import MACHINE_ERRORS, StudyError, StudyLost, require
from search_spaces.safety.files import make_folder
from search_spaces.safety.redaction import without_password, without_secrets
from search_spaces.specification.schema import SweepSpec

DATABASE_ERRORS = (exc.SQLAlchemyError,)

_BUSY_SECONDS = 20  # while another process locks a SQLite file
_POSTGRES = {
    "connect_timeout": 10,
    # firewalls drop idle connections, and a server without power closes none
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,  # ms until sent data must be acknowledged
}
_PSYCOPG = ("postgresql", "postgresql+psycopg")
_READ_ONLY = "25006"  # error code of a PostgreSQL standby that is about to take over
_LOST_IN_TRANSACTION = "8s2b"  # SQLAlchemy's code for a transaction whose connection is gone
STUDY_FILE = "study.db"  # in a study's folder, if no storage is named
_SQLITE, _FILE = "sqlite:///", "file:"
_STUDIES = "studies"  # a table in every version of Optuna's schema
_LAST = {"alembic_version"}  # the table that Optuna creates last
_MLFLOW = "experiments"  # a table of MLflow
_ATTEMPTS = 20  # to open a storage while other processes create its tables
# database drivers raise ValueError, for example for a host name that they cannot encode
_OPENING_ERRORS = (
    *(exc.ArgumentError, exc.SQLAlchemyError, StorageInternalError),
    *(OSError, ImportError, ValueError),
)


@final
class _DurableConnection(sqlite3.Connection):
    """Connection whose commits outlive a power loss.

    By default SQLite does not sync the folder after it has removed a transaction's journal: after a
    power loss the journal may be there again, and takes the transaction back.
    Source: https://sqlite.org/pragma.html#pragma_synchronous
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.execute("PRAGMA synchronous = EXTRA").close()


def is_postgres(url: str) -> bool:
    """Returns True if the URL names a PostgreSQL database."""
    return _backend(url) == "postgresql"


def is_sqlite(url: str) -> bool:
    """Returns True if the URL names a SQLite database, with whatever driver."""
    return _backend(url) == "sqlite"


def _backend(url: str) -> str:
    return url.partition(":")[0].partition("+")[0]


def refuse_unlockable(url: str) -> None:
    """Checks that a storage can keep two drivers apart; creates nothing.

    Raises:
        StudyError: If it cannot; one sentence.
        ArgumentError: If the URL is none.
    """
    path = make_url(url).database or ""
    if not (is_postgres(url) or is_sqlite(url)):
        fault = "studies are kept in SQLite or PostgreSQL, where one driver at a time can be sure"
    elif is_sqlite(url) and sqlite_path(url) is None:
        fault = "a database in memory ends with its process; name a file"
    elif is_sqlite(url) and path.startswith(_FILE):
        fault = "its file is a URI, which may turn SQLite's locks off; give it as sqlite:///PATH"
    else:
        return
    raise StudyError(f"study.storage {safe_url(url)} cannot be opened: {fault}")


def engine_options(url: str) -> dict[str, Any]:
    """Returns the arguments of `create_engine` for a URL, without the URL itself.

    Raises:
        MissingExtraError: If the database is PostgreSQL and psycopg is not installed.
    """
    if is_sqlite(url):
        return {"connect_args": {"timeout": _BUSY_SECONDS, "factory": _DurableConnection}}
    if not is_postgres(url):
        return {"pool_pre_ping": True}
    if make_url(url).drivername in _PSYCOPG:
        require("psycopg")
    return {"pool_pre_ping": True, "pool_size": 2, "connect_args": _connect_arguments(url)}


def open_engine(url: str) -> Engine:
    """Returns an engine that pools no connections."""
    options = {name: value for name, value in engine_options(url).items() if name != "pool_size"}
    return create_engine(with_driver(url), poolclass=NullPool, **options)


def is_unavailable(error: BaseException | None) -> bool:
    """Returns True if the database is unavailable, rather than a query wrong."""
    if isinstance(error, exc.DBAPIError):
        is_read_only = getattr(error.orig, "sqlstate", None) == _READ_ONLY
        if error.connection_invalidated or is_read_only:
            return True
        if getattr(error.orig, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR:
            return False  # such as a missing table
    if isinstance(error, exc.PendingRollbackError) and error.code == _LOST_IN_TRANSACTION:
        return True
    return isinstance(error, exc.OperationalError | exc.InterfaceError)


# libpq's and PostgreSQL's own words, and SQLite's about its disk
_AWAY = (
    *("disk I/O error", "database or disk is full", "database is locked"),
    *("Connection refused", "timeout expired", "No route to host"),
    *("closed the connection unexpectedly", "is starting up", "is shutting down"),
    *("not yet accepting connections", "in recovery mode", "too many clients", "connection slots"),
)


def root_cause(error: BaseException) -> BaseException:
    """Returns the first error of a chain: the driver's, below SQLAlchemy's and Optuna's."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def reason(error: BaseException) -> str:
    """Returns the first line of an error's original message."""
    root = root_cause(error)
    return next(iter(str(root).strip().splitlines()), type(root).__name__)


def tables(url: str) -> frozenset[str]:
    """Returns the names of the tables in a database."""
    engine = open_engine(url)
    try:
        return frozenset(inspect(engine).get_table_names())
    finally:
        engine.dispose()


def process_name() -> str:
    """Returns this process's name for messages, such as `ann@host, process 4711`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user id may have no name
        user = "unknown"
    return f"{user}@{socket.gethostname()}, process {os.getpid()}"


def _connect_arguments(url: str) -> dict[str, Any]:
    if make_url(url).drivername not in (*_PSYCOPG, "postgresql+psycopg2"):
        return {}
    options = {**_POSTGRES, "application_name": f"plimsoll {process_name()}"}
    return {key: value for key, value in options.items() if key not in make_url(url).query}


def storage_url(spec: SweepSpec, name: str) -> str:
    """Returns the URL of the named storage, or of a SQLite file of ours in the study's folder."""
    if (named := study_storage(spec)) is not None:
        return named
    check_files(spec, f"{name}/{STUDY_FILE}")
    return f"{_SQLITE}{Path(spec.study.folder, name, STUDY_FILE)}"


def sqlite_path(url: str) -> Path | None:
    """Returns the file of a SQLite storage; None for other storages and for one in memory."""
    if not is_sqlite(url):
        return None
    try:
        path = make_url(url).database
    except exc.ArgumentError:  # which `create_engine` describes
        return None
    return None if path in (None, "", ":memory:") else Path(path)


def holds_studies(url: str) -> bool:
    """Returns True if the storage has Optuna's tables; creates nothing."""
    path = sqlite_path(url)
    return (path is None or path.exists()) and _STUDIES in tables(url)


@contextlib.contextmanager
def opened_storage(url: str) -> Iterator[StudyStorage]:
    """Opens a storage for the length of the block, as a shared database limits connections.

    Raises:
        StudyError: If another version of Optuna has written it.
    """
    storage = open_storage(url)
    try:
        yield storage
    finally:
        storage.remove_session()
        storage.engine.dispose()


def open_storage(url: str) -> StudyStorage:
    """Opens Optuna's storage; creates its tables, and the file and folder of a SQLite storage.

    Its connections close when the storage is garbage-collected.

    Raises:
        StudyError: If another version of Optuna has written it.
    """
    if (path := sqlite_path(url)) is not None:
        make_folder(path.parent)
    for attempt in range(_ATTEMPTS):
        existing = tables(url)
        _refuse_mlflow_database(url, existing)
        try:
            # SQLite creates table by table: two processes may each leave some to the other
            storage = _storage(url, create=not existing >= _LAST)
        except (exc.IntegrityError, exc.ProgrammingError, exc.OperationalError) as error:
            # another process may create the tables at the same time
            is_there = isinstance(error, exc.IntegrityError) or "already exists" in str(error)
            if existing >= _LAST or attempt + 1 == _ATTEMPTS or not is_there:
                raise
            time.sleep(0.05 * (attempt + 1))
        else:
            weakref.finalize(storage, storage.engine.dispose)
            return storage
    raise AssertionError("the last attempt returns or raises")


def _storage(url: str, *, create: bool) -> StudyStorage:
    try:
        return StudyStorage(
            with_driver(url).replace("{", "{{").replace("}", "}}"),  # Optuna formats the URL
            engine_kwargs=engine_options(url),
            skip_table_creation=not create,  # an older schema must not get newer tables
        )
    except RuntimeError as error:  # Optuna's, with the command that helps
        raise StudyError(f"study.storage {safe_url(url)} cannot be opened: {error}") from error


def _refuse_mlflow_database(url: str, existing: frozenset[str]) -> None:
    # Optuna and MLflow store their schema's version in a table of the same name
    if _MLFLOW in existing and _STUDIES not in existing:
        raise StudyError(
            f"study.storage {safe_url(url)} is MLflow's database: the study needs one of its own"
        )


def created_study(storage: BaseStorage, name: str) -> optuna.Study:
    """Returns a study of a storage, which is created if it does not exist."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        study_name=name,
        storage=storage,
        direction="maximize",
        sampler=RandomSampler(),  # not used: proposers choose the plans
        load_if_exists=True,
    )


@contextlib.contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turns errors of a storage that cannot be opened into one without credentials.

    Raises:
        StudyLost: If its server does not answer now, or its disk fails or is full.
        StudyError: If something else is wrong, which the same command would meet again.
    """
    try:
        yield
    except _OPENING_ERRORS as error:
        kind = StudyLost if is_server_away(error) else StudyError
        raise kind(
            f"study.storage {safe_url(url)} cannot be opened: {storage_reason(error, url)}"
        ) from error


def is_server_away(error: BaseException) -> bool:
    """Returns True if a database server refuses connections for now, or a disk fails or is full.

    A server that answers refuses with FATAL, for good unless it starts, stops or is full. A host
    that nobody knows is taken for a typing error.
    """
    root = root_cause(error)
    if isinstance(root, OSError) and root.errno in MACHINE_ERRORS:
        return True
    if not is_unavailable(error):
        return False
    text = str(root)
    return any(words in text for words in _AWAY)


def storage_reason(error: BaseException, url: str) -> str:
    """Returns the cause of an error in one line without credentials."""
    if isinstance(root := root_cause(error), ImportError) and root.name:
        return f"its driver, the Python package {root.name}, is not installed"
    line = without_secrets(reason(error).replace(url, safe_url(url)), url)
    if "no password supplied" in line:
        return f"{line}; copies of a specification hold no password, so set {STORAGE_VARIABLE}"
    return line


def safe_url(url: str) -> str:
    """Returns scheme, host and path of a URL, without user and query, which may hold a password."""
    return re.sub(r"[^/]*@|\?.*$", "", without_password(url))
