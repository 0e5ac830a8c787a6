"""The state of a sweep, derived from its events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.core.events import (
    Event,
    GroupStarted,
    Noted,
    SweepEnded,
    SweepStarted,
    TrialEnded,
    TrialStarted,
)
from orchestrator.core.objective import Objective, limit_of, score
from orchestrator.core.validation import (
    candidates,
    counts_as_validation,
    failures,
    next_validation,
    slowness,
    validated_among,
)
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Fingerprint, Record

if TYPE_CHECKING:
    from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepState:
    """All that is known of a sweep at one moment.

    `records` holds what earlier drivers measured too; `resumed` says how many those are.
    Validations stand apart, each under the number of its trial.
    """

    study: str
    spec: SweepSpec
    space: Space
    started_at: float
    records: tuple[Record, ...]
    resumed: int
    running: tuple[TrialStarted, ...] = ()
    memory_limit_bytes: int | None = None
    fingerprint: Fingerprint | None = None
    notes: tuple[Noted, ...] = ()
    ended: SweepEnded | None = None
    validations: tuple[Record, ...] = ()

    @property
    def goal(self) -> Objective:
        """What is best, and what is feasible."""
        return Objective.of(self.spec)

    @property
    def for_workers(self) -> SweepSpec:
        """The specification as workers are given it, which names the study."""
        spec = self.spec.for_workers
        study = spec.study.model_copy(update={"name": self.study})
        return spec.model_copy(update={"study": study})

    @property
    def best(self) -> Record | None:
        """The trial of the validated plan, else the best feasible one.

        One whose validation failed is neither.
        """
        equals, goal = self.equals, self.goal
        validation = validated_among(equals, self.validations)
        wanted = max(equals, key=lambda record: score(record, goal), default=None)
        return (
            wanted
            if validation is None
            else next(r for r in equals if r.number == validation.number)
        )

    @property
    def equals(self) -> list[Record]:
        """The best trials, statistically equal, in the order of their validation."""
        return candidates(self.records, self.failed_validations, self.goal)

    @property
    def validated(self) -> Record | None:
        """The validation that holds, of one of the best plans."""
        return validated_among(self.equals, self.validations)

    @property
    def failed_validations(self) -> Mapping[int, str]:
        """The trials whose validation failed, each with the reason."""
        return failures(self.validations, self.records, self.space.baseline, self.spec)

    def why_failed(self, validation: Record) -> str | None:
        """Reason why this validation failed, even if a later one held; None if it held itself.

        One before the last of a trial was too slow: nothing else is repeated.
        """
        same = (other for other in reversed(self.validations) if other.number == validation.number)
        if validation == next(same, validation):
            return self.failed_validations.get(validation.number)
        return slowness(validation, self.records, self.spec)

    @property
    def to_validate(self) -> Record | None:
        """The trial whose plan is validated next, None if that is enough."""
        return next_validation(self.records, self.validations, self.space.baseline, self.spec)


def begin(event: SweepStarted) -> SweepState:
    """The state when a driver takes up a study."""
    return SweepState(
        study=event.study,
        spec=event.spec,
        space=event.space,
        started_at=event.at,
        records=event.records,
        resumed=len(event.records),
        memory_limit_bytes=event.memory_limit_bytes,
        validations=event.validations,
    )


def advance(state: SweepState, event: Event) -> SweepState:
    """The state after the event."""
    match event:
        case SweepStarted():
            return begin(event)
        case GroupStarted():
            return replace(state, fingerprint=event.fingerprint)
        case TrialStarted():
            return replace(state, running=(*state.running, event))
        case TrialEnded(record=record):
            return replace(
                state,
                running=tuple(trial for trial in state.running if trial.number != record.number),
                records=state.records if record.validation else (*state.records, record),
                validations=(*state.validations, record)
                if counts_as_validation(record)
                else state.validations,
                memory_limit_bytes=limit_of(record) or state.memory_limit_bytes,
            )
        case Noted():
            return replace(state, notes=(*state.notes, event))
        case SweepEnded():
            return replace(state, ended=event)
