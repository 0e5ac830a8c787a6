"""Writer of a study's trials: each write takes effect once, even if the database goes away."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, final
from uuid import uuid4

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.core.objective import Objective, score
from orchestrator.core.records import Record
from orchestrator.search.observations import CONSTRAINTS_LIST, constraints_of
from orchestrator.study.locks import AbstractLock
from orchestrator.study.optuna_private import StudyStorage, constraint_key
from orchestrator.study.retry import RetryPolicy, Unavailable
from orchestrator.study.serialization import RECORD, record_to_json
from orchestrator.study.storage import is_unavailable, safe_url, storage_reason, storage_url
from search_spaces.errors import StudyError, StudyLost
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory

Answer = TypeVar("Answer")

_ASKED = "asked"  # key of a token that identifies one call of `open` across its attempts
_STATES = {Measured: TrialState.COMPLETE, OutOfMemory: TrialState.PRUNED}


@final
class StudyWriter:
    """Writer of one study's trials to Optuna's storage, for its one driver.

    Each call is retried while the database is unavailable, and takes effect once: if an answer was
    lost, the next attempt finds what the one before has written.

    Raises:
        StudyLost: From any method, if the database stays away past the time limit.
        StudyError: From any method, if another driver has taken the study meanwhile.
    """

    def __init__(
        self,
        storage: StudyStorage,
        study: optuna.Study,
        spec: SweepSpec,
        retry: RetryPolicy,
        lock: AbstractLock | None = None,
    ) -> None:
        self._storage = storage
        self._study = study
        self._spec, self._objective = spec, Objective.of(spec)
        self._retry = retry
        self._lock = lock
        self._id = storage.get_study_id_from_name(study.study_name)
        self._url = storage_url(spec, study.study_name)

    def call(self, act: Callable[[optuna.Study], Answer]) -> Answer:
        """Returns the result of `act`, which may be called several times."""
        return self._retried(lambda _: act(self._study))

    def open(self, attributes: Mapping[str, Any], template: Mapping[str, Any]) -> int:
        """Creates a running trial, and returns its number.

        One commit: a driver that dies meanwhile leaves either no trial or a complete one.

        Args:
            attributes: The trial's user attributes.
            template: `params` and `distributions`, as Optuna's `create_trial` takes them.
        """
        token = uuid4().hex
        frozen = create_trial(
            state=TrialState.RUNNING, user_attrs={**attributes, _ASKED: token}, **template
        )

        def create(attempt: int) -> int:
            for trial in self.running() if attempt else ():
                if trial.user_attrs.get(_ASKED) == token:
                    return trial._trial_id
            return self._storage.create_new_trial(self._id, frozen)

        trial_id = self._retried(create)
        return self._retried(lambda _: self._storage.get_trial_number_from_id(trial_id))

    def close(self, record: Record) -> None:
        """Ends a trial with its record, unless an earlier attempt has.

        A trial that ran out of memory has no value and a violated constraint: samplers ignore
        failed trials. Outcomes that say nothing about the plan are failures.
        """
        state = _STATES.get(type(record.outcome), TrialState.FAIL)
        measured = state is TrialState.COMPLETE
        values = (score(record, self._objective),) if measured else None

        def write(attempt: int) -> None:
            trial_id = self._id_of(record.number)
            if attempt and self._has_record(trial_id):
                return
            with self._storage.transaction():
                self._storage.set_trial_user_attr(trial_id, RECORD, record_to_json(record))
                self._constrain(trial_id, constraints_of(record, self._objective))
                self._storage.set_trial_state_values(trial_id, state, values)

        try:
            self._retried(write)
        except UpdateFinishedTrialError:
            raise StudyError(
                f"study {self._study.study_name}: another driver has ended a trial that ran here;"
                " only one driver may tune a study at a time"
            ) from None

    def fail(self, number: int, record: Any = None) -> None:
        """Marks a trial as failed, with a record or without, unless it has ended. One commit."""

        def write(_: int) -> None:
            trial_id = self._id_of(number)
            if self._has_ended(trial_id):
                return
            with self._storage.transaction():
                if record is not None:
                    self._storage.set_trial_user_attr(trial_id, RECORD, record)
                self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

        self._retried(write)

    def running(self) -> tuple[FrozenTrial, ...]:
        """Returns the trials that have not ended, of any driver."""
        return self.call(
            lambda study: tuple(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        )

    def _retried(self, act: Callable[[int], Answer]) -> Answer:
        def attempted(attempt: int) -> Answer:
            try:
                if self._lock is not None:
                    self._lock.check()
                return act(attempt)
            except (StorageInternalError, SQLAlchemyError) as error:
                fault = storage_reason(error, self._url)
                if is_unavailable(error.__cause__) or is_unavailable(error):
                    raise Unavailable(fault) from error
                raise StudyError(f"the study cannot be written: {fault}") from error

        try:
            return self._retry.call(attempted)
        except Unavailable as error:
            raise StudyLost(
                f"study.storage {safe_url(self._url)} is unavailable ({error}) for longer than"
                f" study.wait_minutes ({self._spec.study.wait_minutes:g}): all earlier results are"
                " stored there; the same command resumes the sweep"
            ) from error

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

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
