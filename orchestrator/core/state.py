"""The state of a sweep, derived from its events."""

from __future__ import annotations

import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.best import leaders
from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import Objective, memory_limit_of, score
from orchestrator.core.records import Record, last_fingerprint
from orchestrator.core.repeats import is_repeat
from orchestrator.core.speeds import Speeds
from orchestrator.core.validation import ValidationFailure, counts_as_validation, failures
from search_spaces.facts import Understanding
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import SPEED_METRICS
from search_spaces.trial import Activity, Cancelled, Fingerprint

if TYPE_CHECKING:
    from search_spaces.space import Space
Result = TypeVar("Result")
ValidationState = Literal["off", "open", "validated", "failed"]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepState:
    """State of a sweep at one moment.

    `records` includes those of earlier drivers; `resumed` is their number. Validations are kept
    apart, each under the number of its trial. The start of the first workers takes `start_seconds`,
    which no budget counts. `untried` marks the plans of the space without a trial, ended or
    running; it follows from these.
    """

    study: str
    spec: SweepSpec
    space: Space
    started_at: float
    records: tuple[Record, ...]
    resumed: int
    untried: Flags = field(compare=False)
    running: tuple[TrialStarted, ...] = ()
    memory_limit_bytes: int | None = None
    fingerprint: Fingerprint | None = None
    compile_seconds: float = 0.0  # of DeepSpeed's operators, before `started_at`
    start_seconds: float = 0.0
    notes: tuple[Noted, ...] = ()
    ended: SweepEnded | None = None
    validations: tuple[Record, ...] = ()
    understanding: Understanding | None = None  # None if the study has none of this version

    @property
    def untried_count(self) -> int:
        """Number of plans without a trial."""
        return int(np.count_nonzero(self.untried))

    @property
    def budget_began_at(self) -> float:
        """Time from which `budget.minutes` counts, in seconds since the epoch."""
        return self.started_at + self.start_seconds

    @property
    def objective(self) -> Objective:
        """Objective of the sweep."""
        return Objective.of(self.spec)

    @property
    def for_workers(self) -> SweepSpec:
        """Specification for workers, with the name of the study."""
        spec = self.spec.for_workers
        study = spec.study.model_copy(update={"name": self.study})
        return spec.model_copy(update={"study": study})

    @property
    def last_fingerprint(self) -> Fingerprint | None:
        """Fingerprint of the running workers, or else of the last record that has one."""
        return self.fingerprint or last_fingerprint(self.records)

    @property
    def best(self) -> Record | None:
        """The best plan: its first trial, with the pooled speed of all its measurements.

        Of plans within `objective.interval` of the leader it is a validated one. Without one, it is
        the first of the ties; once `validation.tries` plans were validated, the first that passed.
        """
        ties = self.ties
        passed = {one.number for one in self.validations} - self.failed_validations.keys()
        validated = [record for record in ties if record.number in passed]
        if not ties or not validated:
            return ties[0] if ties else None
        if not self._may_validate_more:
            return validated[0]
        objective, section = self.objective, self.spec.objective
        by_speed = objective.metric in SPEED_METRICS and section.prefer == "speed"
        enough = score(ties[0], objective) / (1 + section.interval) if by_speed else -math.inf
        equal = [record for record in validated if score(record, objective) >= enough]
        return equal[0] if equal else ties[0]

    @property
    def _may_validate_more(self) -> bool:
        last = max(record.ended_at for record in self.records)
        tried = {one.number for one in self.validations if one.ended_at > last}
        return len(tried) < self.spec.validation.tries

    @property
    def ties(self) -> list[Record]:
        """The best plans, statistically equal, the best one first."""
        return list(_ties(self.records, self.validations, self.space.baseline, self.spec))

    @property
    def speeds(self) -> Speeds:
        """Speeds of all measured plans, and how much trials of the same plan differ."""
        return _speeds(self.records, self.validations, self.spec)

    @property
    def by_plan(self) -> tuple[Record, ...]:
        """The first trial of each plan, with the speed of all its measurements."""
        speeds = self.speeds
        return tuple(speeds.record(record) for record in self.records if not is_repeat(record))

    @property
    def validated(self) -> Record | None:
        """The validation that the best plan passed, None if it did not."""
        best = self.best
        if best is None:
            return None
        of_best = (one for one in reversed(self.validations) if one.number == best.number)
        return next(of_best, None)

    @property
    def failed_validations(self) -> Mapping[int, ValidationFailure]:
        """Reasons of failed validations, by trial number."""
        return _failed(self.validations, self.records, self.space.baseline, self.spec)

    @property
    def next_to_validate(self) -> Record | None:
        """The trial whose plan is validated next; None if the best is, or enough were tried.

        `validation.tries` counts plans, and starts again once other trials have ended.
        """
        best = self.best
        if not self.spec.validation.enabled or best is None:
            return None
        if any(validation.number == best.number for validation in self.validations):
            return None
        return best if self._may_validate_more else None


def _last_result(compute: Callable[..., Result]) -> Callable[..., Result]:
    """Keeps the last result of a pure function, for the very same arguments.

    Several callbacks derive the same after each event. Comparing thousands of records, as
    `functools.lru_cache` does, would take longer than that.
    """
    last: list[tuple[tuple[object, ...], Result]] = []

    def computed(*arguments: object) -> Result:
        for known, result in last:
            if all(map(operator.is_, known, arguments)):
                return result
        result = compute(*arguments)
        last[:] = [(arguments, result)]
        return result

    return computed


_failed = _last_result(failures)


@_last_result
def _ties(
    records: tuple[Record, ...], validations: tuple[Record, ...], baseline: Plan, spec: SweepSpec
) -> list[Record]:
    failed = _failed(validations, records, baseline, spec)
    return leaders(records, validations, failed, spec)


@_last_result
def _speeds(
    records: tuple[Record, ...], validations: tuple[Record, ...], spec: SweepSpec
) -> Speeds:
    if not validations and not any(map(is_repeat, records)):  # nothing to pool
        return Speeds.of((), (), Objective.of(spec))
    return Speeds.of(records, validations, Objective.of(spec))


def begin(event: SweepStarted) -> SweepState:
    """Returns the state when a driver opens a study."""
    untried = np.ones(len(event.space.table), dtype=bool)
    for record in event.records:
        untried[event.space.table.rows_of(record.plan)] = False
    return SweepState(
        study=event.study,
        spec=event.spec,
        space=event.space,
        started_at=event.at,
        records=event.records,
        resumed=len(event.records),
        untried=untried,
        memory_limit_bytes=event.memory_limit_bytes,
        validations=event.validations,
        understanding=event.understanding,
        compile_seconds=event.compile_seconds,
    )


def advance(state: SweepState, event: Event) -> SweepState:
    """Returns the state after the event."""
    match event:
        case SweepStarted():
            return begin(event)
        case GroupStarted():
            first = state.fingerprint is None
            seconds = event.start_seconds if first else state.start_seconds
            return replace(state, fingerprint=event.fingerprint, start_seconds=seconds)
        case TrialStarted():
            untried = _marked(state, event.plan, untried=False)
            return replace(state, running=(*state.running, event), untried=untried)
        case TrialEnded(record=record):
            return replace(
                state,
                untried=_marked(state, record.plan, untried=_may_run_again(state, record)),
                running=tuple(trial for trial in state.running if trial.number != record.number),
                records=state.records if record.validation else (*state.records, record),
                validations=(*state.validations, record)
                if counts_as_validation(record)
                else state.validations,
                memory_limit_bytes=memory_limit_of(record) or state.memory_limit_bytes,
            )
        case Noted():
            return replace(state, notes=(*state.notes, event))
        case SweepEnded():
            return replace(state, ended=event)


def _marked(state: SweepState, plan: Plan, *, untried: bool) -> Flags:
    marks = state.untried.copy()
    marks[state.space.table.rows_of(plan)] = untried
    return marks


def _may_run_again(state: SweepState, ended: Record) -> bool:
    """Returns True if a trial was cancelled, and no other one of its plan has a result."""
    return isinstance(ended.outcome, Cancelled) and not any(
        one.plan == ended.plan and not isinstance(one.outcome, Cancelled) for one in state.records
    )


def validation_state(state: SweepState) -> ValidationState:
    """Returns the state of the best plan's validation.

    Returns:
        `off` if the specification disables it, `failed` if all attempts failed or no plan remains,
        `open` while one is pending, else `validated`.
    """
    if not state.spec.validation.enabled:
        return "off"
    if state.validated is not None:
        return "validated"
    is_due = state.next_to_validate is not None
    return "failed" if not is_due and state.failed_validations else "open"


class AbstractCallback(ABC):
    """Receives each event with the state after it, in the driver's process.

    A callback must return at once, because it delays the next trial. Slow work belongs in a
    thread of its own that finishes in `close`.
    """

    @abstractmethod
    def on_event(self, event: Event, state: SweepState) -> None:
        """Handles an event."""

    @abstractmethod
    def close(self) -> None:
        """Finishes pending work; called once, after the last event."""


class AbstractView(AbstractCallback):
    """Shows a sweep while it runs, from before it has a state."""

    @abstractmethod
    def on_activity(self, activity: Activity) -> None:
        """Shows what the sweep does now; called up to once a second."""
