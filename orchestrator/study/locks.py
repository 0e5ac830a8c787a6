"""Locks that let one driver at a time write a study, and that end with its process."""

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
    is_postgres,
    is_unavailable,
    open_engine,
    process_name,
    reason,
    sqlite_path,
    storage_errors,
    storage_url,
)
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

_WAIT_SECONDS = 120.0  # while another process creates tables
_NOBODY = 0  # no session has this id
_HOLDER = """
SELECT pid, replace(application_name, 'plimsoll ', '') AS name
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND classid = :high AND objid = :low AND objsubid = 1
AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""


class AbstractLock(ABC):
    """Lock of a driver that writes a study. Readers need none.

    Attributes:
        times_taken: How often it was taken; more than once if it was lost in between.
    """

    times_taken = 0

    @abstractmethod
    def take(self) -> bool:
        """Takes the lock; returns False if another process has it."""

    @abstractmethod
    def holder(self) -> str:
        """Returns the name of the process that has the lock; empty if unknown."""

    @abstractmethod
    def hold(self) -> bool:
        """Checks that this process has the lock, and takes it again if it was lost.

        Returns:
            False if another process has it.

        Raises:
            Unavailable: If the database does not answer.
        """

    @abstractmethod
    def release(self) -> None:
        """Releases the lock."""


@final
class NoLock(AbstractLock):
    """Lock that does nothing, for other kinds of databases."""

    def take(self) -> bool:
        return True

    def holder(self) -> str:
        return ""

    def hold(self) -> bool:
        return True

    def release(self) -> None:
        """Does nothing."""


@final
class FileLock(AbstractLock):
    """Locked file. The kernel releases the lock when the process ends, in whatever way."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def take(self) -> bool:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # child processes must not inherit the lock: Ray outlives a driver that is killed
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.write(file, process_name().encode())
        self._file = file
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
    """Advisory lock of a database session, on a connection that does nothing else.

    PostgreSQL releases it when the connection ends: at once if the process is killed, and within a
    minute if its machine fails.
    """

    def __init__(self, url: str, name: str) -> None:
        self._engine = open_engine(url)
        self._name = name
        self._connection: Connection | None = None
        self._sessions: set[int] = set()  # those of this lock that the server may not have ended

    def take(self) -> bool:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            for setting in ("idle = 30", "interval = 10", "count = 3"):
                connection.execute(text(f"SET tcp_keepalives_{setting}"))
            session: int = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
            self._sessions.add(session)  # before the next query, whose answer may be lost
            key = {"key": self._key(connection)}
            has_lock = connection.execute(text("SELECT pg_try_advisory_lock(:key)"), key).scalar()
        except SQLAlchemyError:
            connection.close()
            raise
        if has_lock:
            self._connection, self._sessions = connection, {session}
            self.times_taken += 1
        else:
            connection.close()
            self._sessions.discard(session)
        return bool(has_lock)

    def holder(self) -> str:
        return self._holding_session()[1]

    def hold(self) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute(text("SELECT 1"))
                return True
        except SQLAlchemyError:
            self.release()
        try:
            if self.take():
                return True
            holder, _ = self._holding_session()
        except SQLAlchemyError as error:
            if is_unavailable(error):
                raise Unavailable(reason(error)) from error
            raise
        if holder in self._sessions:  # the server hung, or the network was cut: it has not noticed
            raise Unavailable("it has not ended the session of the lost connection yet")
        if holder == _NOBODY:  # that session has ended meanwhile
            raise Unavailable("the lock was released a moment ago")
        return False

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                # explicitly, since the server ends the session only some time after the connection
                self._connection.execute(text("SELECT pg_advisory_unlock_all()"))
            with contextlib.suppress(SQLAlchemyError):
                self._connection.close()  # ends the session: nothing is pooled
            self._connection = None

    def _holding_session(self) -> tuple[int, str]:
        """Returns id and name of the session that has the lock; `_NOBODY` if none has."""
        with self._engine.connect() as connection:
            key = self._key(connection) % 2**64
            halves = {"high": key >> 32, "low": key % 2**32}
            row = connection.execute(text(_HOLDER), halves).first()
            return (_NOBODY, "") if row is None else (row.pid, str(row.name))

    def _key(self, connection: Connection) -> int:
        """Returns the lock's key, from schema and study: locks belong to the whole database."""
        schema = connection.execute(text("SELECT current_schema()")).scalar()
        digest = hashlib.sha256(f"plimsoll study {schema} {self._name}".encode()).digest()
        return int.from_bytes(digest[:8], signed=True)


def lock_of(url: str, name: str) -> AbstractLock:
    """Returns the lock of a study in a storage, not yet taken."""
    if is_postgres(url):
        return PostgresLock(url, name)
    path = sqlite_path(url)
    return NoLock() if path is None else FileLock(path.with_name(f"{name}.lock"))


@contextlib.contextmanager
def exclusive_driver(spec: SweepSpec, name: str) -> Iterator[AbstractLock]:
    """Holds the study's lock for the length of the block.

    Raises:
        StudyError: If another driver has it, or the storage cannot be reached.
    """
    url = storage_url(spec, name)
    with storage_errors(url):
        lock = lock_of(url, name)
        if not lock.take():
            raise locked_error(name, lock)
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def waiting_lock(url: str, name: str, seconds: float = _WAIT_SECONDS) -> Iterator[None]:
    """Holds a lock for the length of the block, after waiting for another process that has it.

    Args:
        url: The storage.
        name: Name of the lock.
        seconds: Longest wait; then the block runs without the lock.
    """
    lock = lock_of(url, name)
    until = time.monotonic() + seconds
    while not lock.take() and time.monotonic() < until:
        time.sleep(0.2)
    try:
        yield
    finally:
        lock.release()


def refuse_second_driver(spec: SweepSpec, name: str) -> None:
    """Checks that no other driver has the study; does not keep the lock.

    Raises:
        StudyError: If another driver has it, or the storage cannot be reached.
    """
    with exclusive_driver(spec, name):
        pass


def locked_error(name: str, lock: AbstractLock) -> StudyError:
    """Returns the error for a study that another driver writes, with the driver's name."""
    holder = lock.holder()
    who = f" ({holder})" if holder else ""
    return StudyError(
        f"study {name} is being tuned by another driver{who}: wait until it ends, stop it, or"
        " choose another study.name"
    )
