"""Optuna storages that fail as databases do, and the lock of a driver."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, final

from optuna.storages import BaseStorage, InMemoryStorage
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from benchmarks.simulation.world import DriverKilled, World
from orchestrator.study.locks import AbstractLock, displaced_error
from orchestrator.study.optuna_private import StudyStorage

Answer = TypeVar("Answer")

_WRITES = (
    "create_new_trial",
    "set_trial_user_attr",
    "set_trial_system_attr",
    "set_trial_state_values",
    "set_study_user_attr",
)
_READS = ("get_all_trials", "get_trial")
_AWAY_SECONDS = (1.0, 30.0, 300.0, 5000.0)


def _error(text: str) -> OperationalError:
    return OperationalError("statement", {}, Exception(text))


@final
class Faults:
    """Faults of one study's storage, which all its drivers share."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._away_until = -1.0
        self._away_reason = ""
        self.failed_at = -1.0  # when a call failed last

    def call(self, act: Callable[[], Answer], *, writes: bool) -> Answer:
        """Calls the storage, unless it fails first; or fails after."""
        world = self._world
        if world.now < self._away_until:
            if not world.healed:
                self.failed_at = world.now
                raise _error(self._away_reason)
            self._away_until = -1.0
        if not writes:
            return act()
        for kind, reason in (
            ("storage_away", "connection refused"),
            ("storage_full", "database or disk is full"),
            ("storage_read_only", "attempt to write a readonly database"),
        ):
            if world.occurs(kind):
                self._away_until = world.now + world.random.choice(_AWAY_SECONDS)
                self._away_reason = reason
                self.failed_at = world.now
                raise _error(reason)
        if world.occurs("driver_killed", 0.2):
            raise DriverKilled
        answer = act()
        if world.occurs("answer_lost"):
            self.failed_at = world.now
            raise _error("server closed the connection unexpectedly")
        if world.occurs("driver_killed", 0.2):
            raise DriverKilled
        return answer


def _failing(base: type[BaseStorage]) -> type[Any]:
    """Returns a storage class whose calls may fail once it has `faults`."""

    def wrapped(name: str, *, writes: bool) -> Callable[..., Any]:
        real = getattr(base, name)

        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            if self.faults is None:
                return real(self, *arguments, **options)
            return self.faults.call(lambda: real(self, *arguments, **options), writes=writes)

        return method

    methods = {name: wrapped(name, writes=True) for name in _WRITES}
    methods |= {name: wrapped(name, writes=False) for name in _READS}
    return type(f"Failing{base.__name__}", (base,), {**methods, "faults": None})


class FailingInMemoryStorage(_failing(InMemoryStorage)):  # type: ignore[misc]  # made at run time
    """A storage whose groups of writes take effect as a whole, as those of a database do."""

    faults: Any = None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Fails before the block's writes, or after all of them, or not."""
        faults, self.faults = self.faults, None
        try:
            if faults is not None:
                faults.call(lambda: None, writes=True)
            yield
            if faults is not None:
                faults.call(lambda: None, writes=True)
        finally:
            self.faults = faults


class FailingStudyStorage(_failing(StudyStorage)):  # type: ignore[misc]  # made at run time
    """A database whose calls may fail, and whose answer to a commit may be lost."""

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commits the block's writes, unless one fails; then fails, or not."""
        with super().transaction():
            yield
        if self.faults is not None:
            self.faults.call(lambda: None, writes=True)


@dataclass
class LockTable:
    """The holder of the study's lock, and who took it last."""

    holder: "VirtualLock | None" = None
    last: "VirtualLock | None" = None


@final
class VirtualLock(AbstractLock):
    """Fencing token: whoever takes the study keeps all others from writing, for good."""

    def __init__(self, table: LockTable) -> None:
        self._table = table

    def take(self) -> bool:
        if self._table.holder is not None:
            return False
        self._table.holder = self._table.last = self
        return True

    def check(self) -> None:
        if self._table.last is not self:
            raise displaced_error("simulated", "another process")

    def guard(self, engine: Engine) -> None:
        """Does nothing: no time passes between `check` and the write."""

    def release(self) -> None:
        if self._table.holder is self:
            self._table.holder = None
