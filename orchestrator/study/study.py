"""The study of a sweep: an Optuna study that holds every result."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeVar, final
from uuid import uuid4

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from pydantic import Field, TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from orchestrator.core.events import SweepEnded, SweepStarted
from orchestrator.core.inputs import DriverStarted, InterruptedTrial
from orchestrator.core.notes import Message
from orchestrator.core.objective import Objective, score
from orchestrator.core.placement import CapacityRequest
from orchestrator.core.reasons import TrialReason
from orchestrator.core.records import Record
from orchestrator.search.encoding import distributions, parameters, storable
from orchestrator.search.observations import CONSTRAINTS_LIST, constraints_of
from orchestrator.study import serialization
from orchestrator.study.identity import check_same_job
from orchestrator.study.locks import AbstractLock, DriverLock, exclusive_driver
from orchestrator.study.optuna_private import StudyStorage, constraint_key
from orchestrator.study.retry import Clock, RetryPolicy, Unavailable
from orchestrator.study.serialization import RECORD, record_to_json, records_of
from orchestrator.study.storage import (
    created_study,
    is_unavailable,
    open_storage,
    opened_storage,
    safe_url,
    storage_errors,
    storage_reason,
    storage_url,
)
from search_spaces.errors import PlanError, StudyError, StudyLost
from search_spaces.facts import ClusterFacts, Provenance, Understanding
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory

Answer = TypeVar("Answer")

_PLAN, _REASON = "plan", "reason"
_ASKED = "asked"  # key of a token that identifies one call of `ask` across its attempts
_STATES = {Measured: TrialState.COMPLETE, OutOfMemory: TrialState.PRUNED}
_REASONS: TypeAdapter[TrialReason] = TypeAdapter(
    Annotated[TrialReason, Field(discriminator="kind")]
)


def check_study(spec: SweepSpec, name: str, say: Callable[[str], None] | None = None) -> None:
    """Checks the study before a sweep starts, and creates it if it does not exist.

    `say` receives a sentence if it waits for a driver that may have died.

    Raises:
        StudyError: If the storage cannot be opened, another driver tunes the study, or it
            measures another job.
    """
    url = storage_url(spec, name)
    with exclusive_driver(spec, name, say), storage_errors(url), opened_storage(url) as storage:
        study_in(storage, spec, name)


def study_in(storage: BaseStorage, spec: SweepSpec, name: str) -> optuna.Study:
    """Returns the study, which is created if it does not exist.

    Raises:
        StudyError: If it measures another job.
    """
    study = created_study(storage, name)
    measured = any(RECORD in trial.user_attrs for trial in study.get_trials(deepcopy=False))
    check_same_job(study, spec, name, measured=measured)
    return study


@final
class Study:
    """Trials of one sweep. One driver writes it at a time: see `exclusive_driver`.

    Each call is retried while the database is unavailable, and takes effect once: if an answer was
    lost, the next attempt finds what the one before has written. `retries` says so to the user.

    Raises:
        StudyLost: From any method, if the database stays away past the time limit.
        StudyError: From any method, if another driver has taken the study meanwhile.
    """

    def __init__(
        self,
        spec: SweepSpec,
        name: str,
        space: Space,
        lock: AbstractLock | None = None,
        clock: Clock | None = None,
        storage: StudyStorage | None = None,
    ) -> None:
        """Opens the study, or creates it.

        Args:
            spec: The sweep's specification.
            name: The study's name.
            space: The plans that may be tried.
            lock: This driver's lock; None if there can be no other driver.
            clock: Times the retries of an unavailable storage.
            storage: Optuna's storage; None: opens the one that the specification names.

        Raises:
            StudyError: If the storage cannot be opened, or the study measures another job.
        """
        self._spec = spec
        self._space = space
        self._distributions = storable(distributions(space))
        self._name, self._url = name, storage_url(spec, name)
        self._objective = Objective.of(spec)
        self._notices: list[str] = []  # on what it holds, such as a damaged record
        self._lock = lock
        self.retries = RetryPolicy("the study's storage", 60 * spec.study.wait_minutes, clock)
        with storage_errors(self._url):
            self._storage = storage or open_storage(self._url)
            if lock is not None and isinstance(self._storage, StudyStorage):
                lock.guard(self._storage.engine)
            self._study = study_in(self._storage, spec, name)
            self._id = self._storage.get_study_id_from_name(name)
            records_of(self._study, self._notices.append)  # says which of them are damaged

    def release(self) -> None:
        """Lets other drivers have the study."""
        if self._lock is not None:
            self._lock.release()

    def records(self) -> tuple[Record, ...]:
        """Returns the records of all trials that ended with one, by number."""
        records = self._call(records_of)
        return tuple(sorted(records, key=lambda record: record.number))

    def validations(self) -> tuple[Record, ...]:
        """Returns the records of all validations, in the order in which they ended."""
        return self._call(serialization.kept_validations)

    def driver_started(
        self,
        cluster: ClusterFacts,
        request: CapacityRequest,
        groups: int,
        at: float,
        *,
        nodes_may_come: bool = True,
        compile_seconds: float = 0.0,
    ) -> DriverStarted:
        """Returns the first input of the driver that has opened the study.

        Args:
            cluster: Device and memory limit of the ranks.
            request: The capacity to request.
            groups: Most worker groups at the same time.
            at: Seconds since the epoch.
            nodes_may_come: Whether other nodes may take the place of those that go.
            compile_seconds: How long DeepSpeed's operators were compiled before.
        """
        return DriverStarted(
            sweep=SweepStarted(
                study=self._name,
                spec=self._spec,
                space=self._space,
                records=self.records(),
                validations=self.validations(),
                memory_limit_bytes=cluster.memory_limit_bytes,
                groups=groups,
                understanding=self._call(serialization.kept_understanding),
                at=at,
                compile_seconds=compile_seconds,
            ),
            interrupted=self.interrupted(),  # may add notices
            device=cluster.device,
            folder=str(Path.cwd()),
            request=request,
            nodes_may_come=nodes_may_come,
            notes=tuple(Message(text=notice) for notice in self._notices),
        )

    def keep_validation(self, validation: Record) -> None:
        """Stores a validation; its trial has ended and does not change."""
        self._call(lambda study: serialization.keep_validation(study, validation))

    def keep_understanding(self, understanding: Understanding) -> None:
        """Stores how the job is understood, so that readers of the study need not run its code."""
        self._call(lambda study: serialization.keep_understanding(study, understanding))

    def keep_provenance(self, provenance: Provenance) -> tuple[Provenance, ...]:
        """Stores user, code and data of a driver that starts.

        Returns:
            The provenances of all drivers of the study, including this one.
        """
        self._call(lambda study: serialization.keep_provenance(study, provenance))
        return self._call(serialization.kept_provenances)

    def keep_end(self, ended: SweepEnded) -> None:
        """Stores how the sweep ended."""
        self._call(lambda study: serialization.keep_end(study, ended))

    def ask(self, plan: Plan, reason: TrialReason) -> int:
        """Opens a trial of a plan, and returns its number.

        One commit: a driver that dies meanwhile leaves either no trial or a complete one.
        """
        token = uuid4().hex
        params = parameters(plan, self._distributions)
        frozen = create_trial(
            state=TrialState.RUNNING,
            user_attrs={_PLAN: plan.as_dict(), _REASON: asdict(reason), _ASKED: token},
            params=params,
            distributions=None if params is None else self._distributions,
        )

        def create(attempt: int) -> int:
            for trial in self._running() if attempt else ():
                if trial.user_attrs.get(_ASKED) == token:
                    return trial._trial_id
            return self._storage.create_new_trial(self._id, frozen)

        trial_id = self._retried(create)
        return self._retried(lambda _: self._storage.get_trial_number_from_id(trial_id))

    def tell(self, record: Record) -> None:
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
                f"study {self._name}: another driver has ended a trial that ran here;"
                " only one driver may tune a study at a time"
            ) from None

    def interrupted(self) -> tuple[InterruptedTrial, ...]:
        """Returns the trials that an earlier driver left running."""
        return tuple(
            found
            for trial in self._running()
            if _PLAN in trial.user_attrs and (found := self._interrupted(trial)) is not None
        )

    def _interrupted(self, trial: FrozenTrial) -> InterruptedTrial | None:
        """Returns a trial that was left running; None for one whose plan cannot be read."""
        try:
            plan = Plan.from_dict(trial.user_attrs[_PLAN])
            reason = _REASONS.validate_python(trial.user_attrs[_REASON])
        except (PlanError, KeyError, TypeError, ValidationError) as error:
            self._notices.append(
                f"trial {trial.number} is abandoned: its plan cannot be read ({error})"
            )
            self.abandon(trial.number)
            return None
        return InterruptedTrial(
            number=trial.number, plan=plan, reason=reason, in_space=plan in self._space.candidates
        )

    def abandon(self, number: int, record: Record | None = None) -> None:
        """Marks a trial as failed, unless it has ended in the meantime. One commit.

        Args:
            number: The trial.
            record: Counts the trial as tried; without a record its plan can run again.
        """

        def write(_: int) -> None:
            trial_id = self._id_of(number)
            if self._storage.get_trial(trial_id).state.is_finished():
                return
            with self._storage.transaction():
                if record is not None:
                    self._storage.set_trial_user_attr(trial_id, RECORD, record_to_json(record))
                self._storage.set_trial_state_values(trial_id, TrialState.FAIL)

        self._retried(write)

    def _running(self) -> tuple[FrozenTrial, ...]:
        """Returns the trials that have not ended, of any driver."""
        return self._call(
            lambda study: tuple(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        )

    def _call(self, act: Callable[[optuna.Study], Answer]) -> Answer:
        """Returns the result of `act`, which may be called several times."""
        return self._retried(lambda _: act(self._study))

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
            return self.retries.call(attempted)
        except Unavailable as error:
            raise StudyLost(
                f"study.storage {safe_url(self._url)} has been unavailable for longer than"
                f" study.wait_minutes ({self._spec.study.wait_minutes:g}): {error}; earlier results"
                " are stored there, and the same command resumes the sweep"
            ) from error

    def _id_of(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _has_record(self, trial_id: int) -> bool:
        trial = self._storage.get_trial(trial_id)
        return trial.state.is_finished() and RECORD in trial.user_attrs

    def _constrain(self, trial_id: int, constraints: Mapping[str, float]) -> None:
        for name, value in constraints.items():
            self._storage.set_trial_system_attr(trial_id, constraint_key(name), value)
        if constraints:
            values = list(constraints.values())
            self._storage.set_trial_system_attr(trial_id, CONSTRAINTS_LIST, values)


def take_back(spec: SweepSpec, name: str, numbers: Collection[int], lock: DriverLock) -> None:
    """Lets the results of trials count no more; their plans count as untried.

    Raises:
        StudyError: If the storage cannot be written.
    """
    url = storage_url(spec, name)
    with storage_errors(url), opened_storage(url) as storage:
        lock.guard(storage.engine)
        serialization.keep_taken_back(optuna.load_study(study_name=name, storage=storage), numbers)
