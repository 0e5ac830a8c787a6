"""Writer of a study's trials: each write takes effect once, even if the database goes away."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final
from uuid import uuid4

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage, RDBStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.core.records import Record
from orchestrator.search.observations import CONSTRAINTS_LIST
from orchestrator.study.locks import AbstractLock, NoLock, locked_error
from orchestrator.study.optuna_private import StudyStorage, constraint_key
from orchestrator.study.retry import RetryPolicy, Unavailable
from orchestrator.study.serialization import RECORD, record_from_json, record_to_json
from orchestrator.study.storage import is_unavailable, storage_reason
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec

Answer = TypeVar("Answer")

_DRIVER = "driver"  # key of a token that identifies the last driver that opened the study
_ASKED = "asked"  # key of a token that identifies one call of `open` across its attempts
SPOOL_FILE = "spool.jsonl"  # in the study's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """Final content of a trial."""

    record: Any  # as JSON values
    constraints: Mapping[str, float]
    state: TrialState
    value: float | None = None


@final
class _ConnectionLoss:
    """Flag that a connection was lost, perhaps with the answer to a write."""

    def __init__(self) -> None:
        self.occurred = False

    def note(self, context: ExceptionContext) -> None:
        self.occurred = self.occurred or context.is_disconnect


@final
class StudyWriter:
    """Writer of one study's trials to Optuna's storage, for its one driver.

    Each call is retried while the database is unavailable, and takes effect once: if an answer was
    lost, the next attempt finds what the one before has written.

    Raises:
        Unavailable: From any method, if the database stays away past the time limit.
        StudyError: From any method, if another driver has taken the study meanwhile.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: optuna.Study,
        patience: RetryPolicy,
        lock: AbstractLock | None = None,
    ) -> None:
        self._storage = storage
        self._study = study
        self._retry = patience
        self._lock = lock or NoLock()
        self._id = storage.get_study_id_from_name(study.study_name)
        self._loss = _ConnectionLoss()
        self._token = uuid4().hex
        self._times_taken = self._lock.times_taken
        self._url = ""
        if isinstance(storage, RDBStorage):
            self._url = storage.url
            event.listen(storage.engine, "handle_error", self._loss.note)

    def claim(self) -> None:
        """Marks the study as this driver's, so that an earlier one cannot go on writing it."""
        self.call(lambda study: study.set_user_attr(_DRIVER, self._token))

    def call(self, act: Callable[[optuna.Study], Answer]) -> Answer:
        """Returns the result of `act`, which may be called several times."""
        return self._retried(lambda _: act(self._study))

    def open(self, attributes: Mapping[str, Any], template: Mapping[str, Any]) -> tuple[int, int]:
        """Creates a running trial, and returns its number and Optuna's id of it.

        One commit: a driver that dies meanwhile leaves either no trial or a complete one.

        Args:
            attributes: The trial's user attributes.
            template: `params` and `distributions`, as Optuna's `create_trial` takes them.
        """
        token = uuid4().hex
        frozen = create_trial(
            state=TrialState.RUNNING, user_attrs={**attributes, _ASKED: token}, **template
        )
        self._loss.occurred = False

        def create(attempt: int) -> int:
            if attempt and (created := self._trials_of(token)):
                return created[0]._trial_id
            return self._storage.create_new_trial(self._id, frozen)

        trial_id = self._retried(create)
        if self._loss.occurred:  # Optuna retries as well, and may have created a second trial
            trial_id = self._retried(lambda _: self._only_one(token))
        number = self._retried(lambda _: self._storage.get_trial_number_from_id(trial_id))
        return number, trial_id

    def close(self, trial_id: int, entry: Entry) -> None:
        """Ends a trial with its record, unless an earlier attempt has."""

        def write(attempt: int) -> None:
            if attempt and self._has_record(trial_id):
                return
            values = None if entry.value is None else (entry.value,)
            with self._transaction():
                self._storage.set_trial_user_attr(trial_id, RECORD, entry.record)
                self._constrain(trial_id, entry.constraints)
                self._storage.set_trial_state_values(trial_id, entry.state, values)

        try:
            self._retried(write)
        except UpdateFinishedTrialError:
            raise StudyError(
                f"study {self._study.study_name}: another driver has ended a trial that ran here;"
                " only one driver may tune a study at a time"
            ) from None

    def fail(self, number: int, record: Any = None) -> None:
        """Marks a trial as failed, with a record or without, unless it has ended."""

        def write(_: int) -> None:
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
            if self._has_ended(trial_id):
                return
            if record is not None:
                self._storage.set_trial_user_attr(trial_id, RECORD, record)
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

        self._retried(write)

    def running(self) -> tuple[FrozenTrial, ...]:
        """Returns the trials that have not ended, of any driver."""
        return self.call(
            lambda study: tuple(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        )

    def stop_retrying(self) -> None:
        """Stops retrying while the database is unavailable."""
        self._retry.stop_retrying()

    def _retried(self, act: Callable[[int], Answer]) -> Answer:
        def attempted(attempt: int) -> Answer:
            if not self._lock.hold():
                raise locked_error(self._study.study_name, self._lock)
            try:
                self._check_claim()
                return act(attempt)
            except (StorageInternalError, SQLAlchemyError) as error:
                fault = storage_reason(error, self._url)
                if is_unavailable(error.__cause__) or is_unavailable(error):
                    raise Unavailable(fault) from error
                raise StudyError(f"the study cannot be written: {fault}") from error

        return self._retry.call(attempted)

    def _check_claim(self) -> None:
        """Raises if another driver wrote the study while this one had lost the lock."""
        if self._lock.times_taken == self._times_taken:
            return
        if self._storage.get_study_user_attrs(self._id).get(_DRIVER, self._token) != self._token:
            self._lock.release()  # for the driver that may write
            raise locked_error(self._study.study_name, NoLock())
        self._times_taken = self._lock.times_taken

    def _trials_of(self, token: str) -> list[FrozenTrial]:
        return [
            trial
            for trial in self._storage.get_all_trials(
                self._id, deepcopy=False, states=(TrialState.RUNNING,)
            )
            if trial.user_attrs.get(_ASKED) == token
        ]

    def _only_one(self, token: str) -> int:
        first, *others = self._trials_of(token)
        for other in others:
            self._storage.set_trial_state_values(other._trial_id, TrialState.FAIL)
        return first._trial_id

    def _has_ended(self, trial_id: int) -> bool:
        return self._storage.get_trial(trial_id).state.is_finished()

    def _has_record(self, trial_id: int) -> bool:
        trial = self._storage.get_trial(trial_id)
        return trial.state.is_finished() and RECORD in trial.user_attrs

    def _constrain(self, trial_id: int, constraints: Mapping[str, float]) -> None:
        attributes: dict[str, Any] = {
            constraint_key(name): constraints[name] for name in constraints
        }
        if constraints:
            attributes[CONSTRAINTS_LIST] = list(constraints.values())
        for key, value in attributes.items():
            self._storage.set_trial_system_attr(trial_id, key, value)

    def _transaction(self) -> AbstractContextManager[None]:
        """Returns a block whose writes take effect together, if the storage is a database."""
        if isinstance(self._storage, StudyStorage):
            return self._storage.transaction()
        return nullcontext()


def spool_file(spec: SweepSpec, name: str) -> Path:
    """Returns the file for records that a driver could not write to the study."""
    return Path(spec.study.folder) / name / SPOOL_FILE


def spool(file: Path, record: Record) -> bool:
    """Appends a record to the file; returns False if that fails."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record_to_json(record)) + "\n")
    except OSError:
        return False
    return True


def read_spool(file: Path) -> tuple[Record, ...]:
    """Returns the records of the file, oldest first, without a last line that was cut short."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    complete = text[: text.rfind("\n") + 1]
    return tuple(record_from_json(json.loads(line)) for line in complete.splitlines())
