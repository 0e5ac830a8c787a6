"""One driver for a study at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import final

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.study.retry import Unavailable
from orchestrator.study.storage import (
    is_away,
    is_postgres,
    open_engine,
    process_name,
    reason,
    sqlite_path,
    storage_errors,
    storage_url,
)
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

_WAIT_SECONDS = 120.0  # for another process that makes tables
_HOLDER = """
SELECT pid, replace(application_name, 'plimsoll ', '') AS name
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = :high AND objid = :low AND objsubid = 1
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class AbstractLock(ABC):
    """What a driver holds while it writes a study. Who only reads needs none."""

    @abstractmethod
    def take(self) -> bool:
        """Takes it, or says False if another process has it."""

    @abstractmethod
    def holder(self) -> str:
        """Who has it, as far as that can be told."""

    @abstractmethod
    def hold(self) -> bool:
        """Makes sure of it, takes it again where it was lost; False if another process has it.

        Raises:
            Away: If nobody can say now.
        """

    @abstractmethod
    def release(self) -> None:
        """Lets others have it."""


@final
class NoLock(AbstractLock):
    """Nothing is held: for databases of other kinds, which have other ways or none."""

    def take(self) -> bool:
        return True

    def holder(self) -> str:
        return ""

    def hold(self) -> bool:
        return True

    def release(self) -> None:
        """Nothing to let go."""


@final
class FileLock(AbstractLock):
    """A locked file. The kernel lets go of it when the process is gone, however it ended."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # closed in programs that are started from here: Ray outlives a driver that is killed
        opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(opened)
            return False
        os.ftruncate(opened, 0)
        os.write(opened, process_name().encode())
        self._file = opened
        return True

    def holder(self) -> str:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return self._path.read_text(encoding="utf-8")
        return ""

    def hold(self) -> bool:
        return self._file is not None

    def release(self) -> None:
        if self._file is not None:
            os.ftruncate(self._file, 0)
            os.close(self._file)
            self._file = None


@final
class PostgresLock(AbstractLock):
    """A session's advisory lock, on a connection of its own that does nothing else.

    PostgreSQL lets go of it when the connection ends: at once when the process is killed, and a
    minute after its machine went dark.
    """

    def __init__(self, url: str, name: str) -> None:
        self._engine = open_engine(url)
        self._name = name
        self._connection: Connection | None = None
        self._session: int | None = None  # that has, or had, the lock

    def take(self) -> bool:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            for setting in ("idle = 30", "interval = 10", "count = 3"):
                connection.execute(text(f"SET tcp_keepalives_{setting}"))
            key = {"key": self._key(connection)}
            query = "SELECT pg_try_advisory_lock(:key), pg_backend_pid()"
            taken, session = connection.execute(text(query), key).one()
        except SQLAlchemyError:
            connection.close()
            raise
        if taken:
            self._connection, self._session = connection, session
        else:
            connection.close()
        return bool(taken)

    def holder(self) -> str:
        return self._holding()[1]

    def hold(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute(text("SELECT 1"))
                return True
        except SQLAlchemyError:
            self.release()
        try:
            taken = self.take()
            still = not taken and self._holding()[0] == self._session
        except SQLAlchemyError as error:
            if is_away(error):
                raise Unavailable(reason(error)) from error
            raise
        if still:  # a server that hung, or a line that was cut: it does not know yet
            raise Unavailable("it has not ended the session whose connection was lost")
        return taken

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                # by itself too, since the server ends a session some time after its connection
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
            with contextlib.suppress(SQLAlchemyError):
                self._connection.close()  # and with it the session, since nothing is pooled
            self._connection = None

    def _holding(self) -> tuple[int, str]:
        """The session that has the lock, and what it calls itself; 0 if there is none."""
        with self._engine.connect() as connection:
            key = self._key(connection) % 2**64
            halves = {"high": key >> 32, "low": key % 2**32}
            found = connection.execute(text(_HOLDER), halves).first()
            return (0, "") if found is None else (found.pid, str(found.name))

    def _key(self, connection: Connection) -> int:
        """Of the study among those of its schema; locks are the database's."""
        schema = connection.execute(text("SELECT current_schema()")).scalar()
        digest = hashlib.sha256(f"plimsoll study {schema} {self._name}".encode()).digest()
        return int.from_bytes(digest[:8], signed=True)


def lock_of(url: str, name: str) -> AbstractLock:
    """The lock of a study in a storage, not yet taken."""
    if is_postgres(url):
        return PostgresLock(url, name)
    path = sqlite_path(url)
    return NoLock() if path is None else FileLock(path.with_name(f"{name}.lock"))


@contextlib.contextmanager
def sole_driver(spec: SweepSpec, name: str) -> Iterator[AbstractLock]:
    """Holds the study's lock for the length of the block.

    Raises:
        StudyError: If another driver has it, or the storage cannot be reached.
    """
    url = storage_url(spec, name)
    with storage_errors(url):
        lock = lock_of(url, name)
        if not lock.take():
            raise taken_by_another(name, lock)
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def waiting_lock(url: str, name: str, seconds: float = _WAIT_SECONDS) -> Iterator[None]:
    """Holds a lock for the length of the block; waits while another has it, but not for ever."""
    lock = lock_of(url, name)
    until = time.monotonic() + seconds
    while not lock.take() and time.monotonic() < until:
        time.sleep(0.2)
    try:
        yield
    finally:
        lock.release()


def refuse_second_driver(spec: SweepSpec, name: str) -> None:
    """Looks whether the study is free, and leaves it so.

    Raises:
        StudyError: If another driver has it, or the storage cannot be reached.
    """
    with sole_driver(spec, name):
        pass


def taken_by_another(name: str, lock: AbstractLock) -> StudyError:
    """What to say of a study that another driver writes."""
    holder = lock.holder()
    who = f" ({holder})" if holder else ""
    return StudyError(
        f"study {name} is being tuned by another driver{who}: wait until it ends, stop it, or"
        " choose another study.name"
    )
