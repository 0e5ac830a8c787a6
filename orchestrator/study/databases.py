"""Databases behind a study or MLflow: how they are reached, and what their errors mean.

The one module that knows SQLAlchemy, beside what Optuna makes of it.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
from collections.abc import Iterator
from typing import Any

from alembic.runtime.migration import MigrationContext
from sqlalchemy import Engine, create_engine, inspect, make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from orchestrator.places import with_driver
from search_spaces.extras import require

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
