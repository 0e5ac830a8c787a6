"""Lock of a study, for one driver at a time: a row of its database that each write checks.

The row holds a fencing token and the process that it belongs to. A driver that was paused, cut off
or declared dead finds another token there when it comes back. No clock of any machine is trusted:
a driver that wants the study of a process that may have died watches its heartbeat.
"""

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, final

from sqlalchemy import Connection, Engine, Select, Update, event, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from orchestrator.study.holder import Holder, Life, this_process
from orchestrator.study.optuna_private import STUDIES, STUDY_ATTRIBUTES
from orchestrator.study.retry import Unavailable
from orchestrator.study.storage import (
    created_study,
    open_engine,
    opened_storage,
    refuse_unlockable,
    sqlite_path,
    storage_errors,
    storage_url,
)
from search_spaces.errors import StudyError
from search_spaces.safety.files import real_path
from search_spaces.specification.schema import SweepSpec

_DRIVER, _BEAT = "driver", "driver_beat"  # keys of the study's attributes
_CONFIRMED = "plimsoll_confirmed"  # mark of a connection, for the length of a transaction
_WRITES = ("INSERT", "UPDATE", "DELETE")
# a driver that is stopped in a transaction would keep the row, and with it all others out
_POSTGRES_IDLE = "SET LOCAL idle_in_transaction_session_timeout = '10s'"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Interval at which a driver shows that it lives, and the longest wait of another to see it."""

    beat_seconds: float = 5.0
    silent_seconds: float = 60.0


class AbstractLock(ABC):
    """Lock of a driver that writes a study. Readers need none."""

    @abstractmethod
    def check(self) -> None:
        """Checks ahead of a write that this process still has the lock.

        Raises:
            StudyError: If another process has taken the study.
            Unavailable: If the database is not where it was.
        """

    @abstractmethod
    def guard(self, engine: Engine) -> None:
        """Lets no transaction of an engine write once another process has taken the study."""

    @abstractmethod
    def release(self) -> None:
        """Releases the lock."""


@final
class DriverLock(AbstractLock):
    """Row of the study's attributes with the token of the driver that may write.

    SQLite and PostgreSQL alike: whoever writes changes the row of the token first, so that the
    database orders it and a driver that takes the study.
    """

    def __init__(
        self, url: str, name: str, lease: Lease | None = None, say: Say | None = None
    ) -> None:
        """Prepares the lock of a study that exists.

        `say` receives a sentence if the lock waits for another driver's heartbeat.
        """
        self._name = name
        self._lease = lease or Lease()
        self._say = say or (lambda _: None)
        path = sqlite_path(url)
        self._path = None if path is None else real_path(path)
        self._file = self._identity()
        self._engine = open_engine(url)
        with self._engine.connect() as connection:
            query = select(STUDIES.c.study_id).where(STUDIES.c.study_name == name)
            self._study = int(connection.execute(query).scalar_one())
        self._mine = this_process(None if self._file is None else self._file[1])
        self._content = self._mine.to_json()
        self._stop = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="plimsoll-driver", daemon=True)

    def take(self) -> bool:
        """Takes the lock; returns False if another process has it."""
        while True:
            content = self._stored(_DRIVER)
            holder = Holder.from_json(content)
            if holder is not None and holder.locks(self._mine.inode) and self._lives(holder):
                return False
            if self._replace(content):
                break
        self.guard(self._engine)
        self._heart.start()
        return True

    def holder(self) -> str:
        """Returns the name of the process that has the lock, or had it last; empty if unknown."""
        holder = Holder.from_json(self._stored(_DRIVER))
        return "" if holder is None else holder.name

    def check(self) -> None:
        try:
            if self._identity() == self._file:
                return
        except OSError as error:
            raise Unavailable(f"{self._path}: {error.strerror}") from None
        there = Holder.from_json(self._stored(_DRIVER))
        if there is not None and there.token != self._mine.token:
            raise displaced_error(self._name, there.name)
        raise Unavailable(f"{self._path} was replaced by another file")

    def guard(self, engine: Engine) -> None:
        """Confirms the lock in each transaction of an engine, ahead of its first write.

        It stands below everything that writes, Optuna's own code included.
        """

        def before(connection: Connection, _: Any, statement: str, *__: Any) -> None:
            is_write = statement.lstrip().upper().startswith(_WRITES)
            if not is_write or connection.info.get(_CONFIRMED):
                return
            connection.info[_CONFIRMED] = True  # first, since `_confirm` writes as well
            try:
                self._confirm(connection)
            except BaseException:
                forget(connection)
                raise

        def forget(connection: Connection) -> None:
            if not connection.invalidated:  # a lost one has no mark, and asking it raises an error
                connection.info.pop(_CONFIRMED, None)

        event.listen(engine, "before_cursor_execute", before)
        for end in ("begin", "commit", "rollback"):
            event.listen(engine, end, forget)

    def release(self) -> None:
        self._stop.set()
        if self._heart.is_alive():
            self._heart.join(self._lease.beat_seconds)
        with contextlib.suppress(SQLAlchemyError, StudyError, Unavailable):
            self.check()
            with self._engine.begin() as connection:
                row = self._row(_DRIVER, self._content)
                connection.execute(row.values(value_json=replace(self._mine, token="").to_json()))
        self._engine.dispose()

    def _identity(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        found = self._path.stat()
        return found.st_dev, found.st_ino

    def _confirm(self, connection: Connection) -> None:
        """Writes the token over itself, which fails if another one stands there.

        The database lets this and a driver that takes the study wait for each other's commit.
        """
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(_POSTGRES_IDLE)
        row = self._row(_DRIVER, self._content)
        if connection.execute(row.values(value_json=self._content)).rowcount == 1:
            return
        there = Holder.from_json(connection.execute(self._query(_DRIVER)).scalar())
        raise displaced_error(self._name, "" if there is None else there.name)

    def _beat(self) -> None:
        """Changes a number in the database until the lock is released or taken by another."""
        count = 0
        while not self._stop.wait(self._lease.beat_seconds):
            count += 1
            try:
                self.check()
                self._store_beat(str(count))
            except (SQLAlchemyError, Unavailable):
                continue  # it comes back, or the next write waits for it
            except StudyError:
                return  # the next write says so

    def _store_beat(self, count: str) -> None:
        with self._engine.begin() as connection:
            if not connection.execute(self._row(_BEAT).values(value_json=count)).rowcount:
                row = {"study_id": self._study, "key": _BEAT, "value_json": count}
                connection.execute(insert(STUDY_ATTRIBUTES).values(row))

    def _lives(self, holder: Holder) -> bool:
        """Returns True if a holder lives; watches one that this machine cannot see running."""
        match holder.life():
            case Life.RUNNING:
                return True
            case Life.ENDED:
                return False
        self._say(
            f"study {self._name} is locked by {holder.name}, which may have died: waiting up to"
            f" {self._lease.silent_seconds:.0f} s for its heartbeat"
        )
        before = self._stored(_DRIVER), self._stored(_BEAT)
        until = time.monotonic() + self._lease.silent_seconds
        while time.monotonic() < until:
            time.sleep(self._lease.beat_seconds / 5)
            if (self._stored(_DRIVER), self._stored(_BEAT)) != before:
                there = Holder.from_json(self._stored(_DRIVER))
                return there is not None and there.locks(self._mine.inode)
        return False

    def _stored(self, key: str) -> str | None:
        with self._engine.connect() as connection:
            content: str | None = connection.execute(self._query(key)).scalar()
        return content

    def _replace(self, content: str | None) -> bool:
        """Puts this process in the place of a content; returns False if that has changed."""
        with contextlib.suppress(IntegrityError), self._engine.begin() as connection:
            if content is not None:
                row = self._row(_DRIVER, content).values(value_json=self._content)
                return connection.execute(row).rowcount == 1
            new = {"study_id": self._study, "key": _DRIVER, "value_json": self._content}
            connection.execute(insert(STUDY_ATTRIBUTES).values(new))
            return True
        return False

    def _row(self, key: str, content: str | None = None) -> Update:
        columns = STUDY_ATTRIBUTES.c
        row = update(STUDY_ATTRIBUTES).where(columns.study_id == self._study, columns.key == key)
        return row if content is None else row.where(columns.value_json == content)

    def _query(self, key: str) -> Select[Any]:
        columns = STUDY_ATTRIBUTES.c
        return select(columns.value_json).where(columns.study_id == self._study, columns.key == key)


@contextlib.contextmanager
def exclusive_driver(
    spec: SweepSpec, name: str, say: Say | None = None, lease: Lease | None = None
) -> Iterator[DriverLock]:
    """Holds the study's lock for the length of the block; creates the study if there is none.

    `say` receives a sentence if it waits for a driver that may have died.

    Raises:
        StudyError: If another driver has it, or the storage cannot be reached or cannot lock.
    """
    url = storage_url(spec, name)
    with storage_errors(url):
        refuse_unlockable(url)
        with opened_storage(url) as storage:
            created_study(storage, name)
        lock = DriverLock(url, name, lease, say)
        if not lock.take():
            raise locked_error(name, lock.holder())
    try:
        yield lock
    finally:
        lock.release()


def locked_error(name: str, holder: str) -> StudyError:
    """Returns the error for a study that another driver writes, with the driver's name."""
    who = f" ({holder})" if holder else ""
    return StudyError(
        f"study {name} is being tuned by another driver{who}: wait until it ends, stop it, or"
        " choose another study.name"
    )


def displaced_error(name: str, holder: str) -> StudyError:
    """Returns the error of a driver whose study another one has taken in the meantime."""
    who = f" ({holder})" if holder else ""
    return StudyError(
        f"study {name}: another driver{who} took over while this one was unresponsive; this one"
        " stops writing"
    )
