"""The study of a sweep: an Optuna study that holds every result."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from pydantic import Field, TypeAdapter, ValidationError

from orchestrator.core.events import SweepEnded
from orchestrator.core.inputs import DriverStarted, InterruptedTrial
from orchestrator.core.placement import CapacityRequest
from orchestrator.core.reasons import TrialReason
from orchestrator.core.records import Record
from orchestrator.search.encoding import distributions, parameters, storable
from orchestrator.study.identity import check_same_job
from orchestrator.study.locks import AbstractLock, DriverLock, exclusive_driver
from orchestrator.study.optuna_private import StudyStorage
from orchestrator.study.retry import Clock, RetryPolicy
from orchestrator.study.serialization import (
    RECORD,
    keep_end,
    keep_provenance,
    keep_taken_back,
    keep_understanding,
    keep_validation,
    kept_provenances,
    kept_validations,
    record_to_json,
    records_of,
)
from orchestrator.study.storage import (
    created_study,
    open_storage,
    opened_storage,
    storage_errors,
    storage_url,
)
from orchestrator.study.writer import StudyWriter
from search_spaces.errors import PlanError
from search_spaces.facts import ClusterFacts, Provenance, Understanding
from search_spaces.plan import Plan
from search_spaces.space import Space
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import Metric

VALUE_NAMES: Mapping[Metric, str] = {
    "samples_per_second": "samples per second",
    "samples_per_price": "samples per unit of price",
    "headroom": "share of memory left free",
}
_PLAN, _REASON = "plan", "reason"
_REASONS: TypeAdapter[TrialReason] = TypeAdapter(
    Annotated[TrialReason, Field(discriminator="kind")]
)


def check_study(spec: SweepSpec, name: str, say: Callable[[str], None] | None = None) -> None:
    """Checks the study before a sweep starts, and creates it if it does not exist.

    Args:
        spec: The sweep's specification.
        name: The study's name.
        say: Receives a sentence if it waits for a driver that may be dead.

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
    _name_values(study, spec.objective.metric)
    return study


def _name_values(study: optuna.Study, metric: Metric) -> None:
    # the names label axes in plots of Optuna and optuna-dashboard
    names = [VALUE_NAMES[metric]]
    if study.metric_names != names:
        with warnings.catch_warnings():  # Optuna calls it experimental in each sweep
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(names)


class Study:
    """Trials of one sweep. One driver writes it at a time: see `exclusive_driver`.

    Raises:
        StudyLost: From any method that writes, if the storage is unavailable for too long.
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
        self._name, url = name, storage_url(spec, name)
        self._notices: list[str] = []  # until somebody listens
        self._lock = lock
        self._retry = RetryPolicy("the study's storage", 60 * spec.study.wait_minutes, clock)
        with storage_errors(url):
            storage = storage or open_storage(url)
            if lock is not None and isinstance(storage, StudyStorage):
                lock.guard(storage.engine)
            self._study = study_in(storage, spec, name)
            self._writer = StudyWriter(storage, self._study, spec, self._retry, lock)
            records_of(self._study, self._notices.append)  # says which of them are damaged

    def say_through(self, say: Callable[[str], None]) -> None:
        """Sets the function that receives messages about the storage and what it holds."""
        self._retry.say = say

    def say_notices(self) -> None:
        """Says what was found as the study was opened, such as a damaged record."""
        while self._notices:
            self._retry.say(self._notices.pop(0))

    def when_waiting(self, call: Callable[[], None]) -> None:
        """Sets the function that is called now and then while the storage is unavailable."""
        self._retry.waiting = call

    def release(self) -> None:
        """Lets other drivers have the study."""
        if self._lock is not None:
            self._lock.release()

    def stop_retrying(self) -> None:
        """Stops retrying while the storage is unavailable, so that the sweep can end."""
        self._retry.stop_retrying()

    def records(self) -> tuple[Record, ...]:
        """Returns the records of all trials that ended with one, by number."""
        records = self._writer.call(records_of)
        return tuple(sorted(records, key=lambda record: record.number))

    def validations(self) -> tuple[Record, ...]:
        """Returns the records of all validations, in the order in which they ended."""
        return self._writer.call(kept_validations)

    def driver_started(
        self,
        cluster: ClusterFacts,
        request: CapacityRequest,
        max_groups: int,
        at: float,
        *,
        nodes_may_come: bool = True,
    ) -> DriverStarted:
        """Returns the first input of the driver that has opened the study.

        Args:
            cluster: Device and memory limit of the ranks.
            request: The capacity to request.
            max_groups: Most worker groups at the same time.
            at: Seconds since the epoch.
            nodes_may_come: Whether other nodes may take the place of those that go.
        """
        return DriverStarted(
            study=self._name,
            spec=self._spec,
            space=self._space,
            records=self.records(),
            validations=self.validations(),
            interrupted=self.interrupted(),
            memory_limit_bytes=cluster.memory_limit_bytes,
            device=cluster.device,
            folder=str(Path.cwd()),
            max_groups=max_groups,
            request=request,
            nodes_may_come=nodes_may_come,
            at=at,
        )

    def keep_validation(self, validation: Record) -> None:
        """Stores a validation; its trial has ended and does not change."""
        self._writer.call(lambda study: keep_validation(study, validation))

    def keep_understanding(self, understanding: Understanding) -> None:
        """Stores how the job is understood, so that readers of the study need not run its code."""
        self._writer.call(lambda study: keep_understanding(study, understanding))

    def keep_provenance(self, provenance: Provenance) -> tuple[Provenance, ...]:
        """Stores user, code and data of a driver that starts.

        Returns:
            The provenances of all drivers of the study, including this one.
        """
        self._writer.call(lambda study: keep_provenance(study, provenance))
        return self._writer.call(kept_provenances)

    def keep_end(self, ended: SweepEnded) -> None:
        """Stores how the sweep ended."""
        self._writer.call(lambda study: keep_end(study, ended))

    def ask(self, plan: Plan, reason: TrialReason) -> int:
        """Opens a trial of a plan, and returns its number."""
        attributes: dict[str, Any] = {_PLAN: plan.as_dict(), _REASON: asdict(reason)}
        params = parameters(plan, self._distributions)
        template = {
            "params": params,
            "distributions": None if params is None else self._distributions,
        }
        return self._writer.open(attributes, template)

    def tell(self, record: Record) -> None:
        """Closes a trial with its record."""
        self._writer.close(record)

    def interrupted(self) -> tuple[InterruptedTrial, ...]:
        """Returns the trials that an earlier driver left running."""
        return tuple(
            found
            for trial in self._writer.running()
            if _PLAN in trial.user_attrs and (found := self._interrupted(trial)) is not None
        )

    def _interrupted(self, trial: FrozenTrial) -> InterruptedTrial | None:
        """Returns a trial that was left running; None for one whose plan cannot be read."""
        try:
            plan = Plan.from_dict(trial.user_attrs[_PLAN])
            reason = _REASONS.validate_python(trial.user_attrs[_REASON])
        except (PlanError, KeyError, TypeError, ValidationError) as error:
            self._notices.append(f"trial {trial.number} is given up: it cannot be read ({error})")
            self._writer.fail(trial.number)
            return None
        return InterruptedTrial(
            number=trial.number,
            plan=plan,
            reason=reason,
            in_space=plan in self._space.candidates,
        )

    def abandon(self, number: int, record: Record | None = None) -> None:
        """Marks a trial as failed, unless it has ended in the meantime.

        Args:
            number: The trial.
            record: Counts the trial as tried; without a record its plan can run again.
        """
        self._writer.fail(number, None if record is None else record_to_json(record))


def take_back(spec: SweepSpec, name: str, numbers: Collection[int], lock: DriverLock) -> None:
    """Lets the results of trials count no more; their plans count as untried.

    Args:
        spec: The sweep's specification.
        name: The study's name.
        numbers: Of the trials.
        lock: Of this process, which holds the study.

    Raises:
        StudyError: If the storage cannot be written.
    """
    url = storage_url(spec, name)
    with storage_errors(url), opened_storage(url) as storage:
        lock.guard(storage.engine)
        keep_taken_back(optuna.load_study(study_name=name, storage=storage), numbers)
