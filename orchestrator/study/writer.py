"""What a driver writes of its trials, each once, though the database may go away in between."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, final
from uuid import uuid4

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.search.observations import LISTED
from orchestrator.study.locks import AbstractLock, NoLock, taken_by_another
from orchestrator.study.retry import RetryPolicy, Unavailable
from orchestrator.study.serialization import RECORD, record_from_json, record_to_json
from orchestrator.study.storage import is_away, storage_reason
from search_spaces.errors import StudyError
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Record

Answer = TypeVar("Answer")

_ASKED = "asked"  # of one call that opens a trial, which may be made several times
UNTOLD_FILE = "untold.jsonl"  # in the study's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """How a trial is closed."""

    record: Any  # as JSON values
    constraints: Mapping[str, float]
    state: TrialState
    value: float | None = None


@final
class _Losses:
    """Whether a connection was lost, and an answer perhaps with it."""

    def __init__(self) -> None:
        self.seen = False

    def note(self, context: ExceptionContext) -> None:
        """Hears of every error of an engine."""
        self.seen = self.seen or context.is_disconnect


@final
class StudyWriter:
    """The trials of one study in Optuna's storage, for the one driver that writes them.

    Every call is tried again while the database is away, and has its effect once: an answer
    that was lost on the way leaves a trial behind that the next attempt finds.

    Raises:
        Away: From any method, if it stays away for longer than patience lasts.
        StudyError: From any method, if another driver has taken the study meanwhile.
    """

    def __init__(
        self,
        storage: RDBStorage,
        study: optuna.Study,
        patience: RetryPolicy,
        lock: AbstractLock | None = None,
    ) -> None:
        self._storage = storage
        self._study = study
        self._patience = patience
        self._lock = lock or NoLock()
        self._id = storage.get_study_id_from_name(study.study_name)
        self._losses = _Losses()
        event.listen(storage.engine, "handle_error", self._losses.note)

    def call(self, act: Callable[[optuna.Study], Answer]) -> Answer:
        """What `act` returns, which may be called several times."""
        return self._endure(lambda _: act(self._study))

    def open(self, attributes: Mapping[str, Any], template: Mapping[str, Any]) -> Trial:
        """Makes a trial that is under way.

        One commit: a driver that dies in it leaves either no trial or one that says what it is.
        """
        asked = uuid4().hex
        frozen = create_trial(
            state=TrialState.RUNNING, user_attrs={**attributes, _ASKED: asked}, **template
        )
        self._losses.seen = False

        def make(attempt: int) -> int:
            if attempt and (there := self._asked(asked)):
                return there[0]._trial_id
            return self._storage.create_new_trial(self._id, frozen)

        trial_id = self._endure(make)
        if self._losses.seen:  # Optuna tries again too, and looks for nothing
            trial_id = self._endure(lambda _: self._only_one(asked))
        return self._endure(lambda _: Trial(self._study, trial_id))

    def close(self, trial_id: int, entry: Entry) -> None:
        """Ends a trial with its record; does nothing to one that has ended so."""

        def write(attempt: int) -> None:
            if attempt and self._is_told(trial_id):
                return
            self._storage.set_trial_user_attr(trial_id, RECORD, entry.record)
            self._constrain(trial_id, entry.constraints)
            values = None if entry.value is None else (entry.value,)
            # `Study.tell` would read the whole trial twice more, a third of what telling takes
            self._storage.set_trial_state_values(trial_id, entry.state, values)

        try:
            self._endure(write)
        except UpdateFinishedTrialError:
            raise StudyError(
                f"study {self._study.study_name}: another driver has ended a trial that ran here;"
                " only one may tune a study at a time"
            ) from None

    def fail(self, number: int, record: Any = None) -> None:
        """Fails a trial, with a record or without; does nothing to one that has ended."""

        def write(_: int) -> None:
            trial_id = self._storage.get_trial_id_from_study_id_trial_number(self._id, number)
            if self._has_ended(trial_id):
                return
            if record is not None:
                self._storage.set_trial_user_attr(trial_id, RECORD, record)
            self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

        self._endure(write)

    def running(self) -> tuple[FrozenTrial, ...]:
        """The trials that have not ended, whoever opened them."""
        return self.call(
            lambda study: tuple(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        )

    def give_up_waiting(self) -> None:
        """Waits no longer for a database that is away."""
        self._patience.give_up_waiting()

    def _endure(self, act: Callable[[int], Answer]) -> Answer:
        def attempted(attempt: int) -> Answer:
            if not self._lock.hold():
                raise taken_by_another(self._study.study_name, self._lock)
            try:
                return act(attempt)
            except (StorageInternalError, SQLAlchemyError) as error:
                told = storage_reason(error, self._storage.url)
                if is_away(error.__cause__) or is_away(error):
                    raise Unavailable(told) from error
                raise StudyError(f"the study cannot be written: {told}") from error

        return self._patience.call(attempted)

    def _asked(self, asked: str) -> list[FrozenTrial]:
        return [
            trial
            for trial in self._storage.get_all_trials(
                self._id, deepcopy=False, states=(TrialState.RUNNING,)
            )
            if trial.user_attrs.get(_ASKED) == asked
        ]

    def _only_one(self, asked: str) -> int:
        first, *others = self._asked(asked)
        for other in others:
            self._storage.set_trial_state_values(other._trial_id, TrialState.FAIL)
        return first._trial_id

    def _has_ended(self, trial_id: int) -> bool:
        return self._storage.get_trial(trial_id).state.is_finished()

    def _is_told(self, trial_id: int) -> bool:
        trial = self._storage.get_trial(trial_id)
        return trial.state.is_finished() and RECORD in trial.user_attrs

    def _constrain(self, trial_id: int, constraints: Mapping[str, float]) -> None:
        trial = Trial(self._study, trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Optuna's, if the constraint was told before
            for name, missed in constraints.items():
                trial.set_constraint(name, missed)
        if constraints:
            self._storage.set_trial_system_attr(trial_id, LISTED, list(constraints.values()))


def spool_file(spec: SweepSpec, name: str) -> Path:
    """Where they are kept."""
    return Path(spec.study.folder) / name / UNTOLD_FILE


def spool(file: Path, record: Record) -> bool:
    """Adds a record; False if the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a", encoding="utf-8") as opened:
            opened.write(json.dumps(record_to_json(record)) + "\n")
    except OSError:
        return False
    return True


def read_spool(file: Path) -> tuple[Record, ...]:
    """The records that wait, in the order in which they came; a line cut short is none."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()
    whole = text[: text.rfind("\n") + 1]
    return tuple(record_from_json(json.loads(line)) for line in whole.splitlines())
