"""The state of a sweep, derived from its events."""

from __future__ import annotations

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
from orchestrator.core.ranking import best
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Fingerprint, Record
from search_spaces.spec.schema import SweepSpec

if TYPE_CHECKING:
    from search_spaces.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepState:
    """All that is known of a sweep at one moment.

    `records` holds what earlier drivers measured too; `resumed` says how many those are.
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

    @property
    def best(self) -> Record | None:
        """The fastest record that keeps the head-room."""
        return best(self.records, self.spec.objective.headroom)


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
                records=(*state.records, record),
                memory_limit_bytes=_limit(record) or state.memory_limit_bytes,
            )
        case Noted():
            return replace(state, notes=(*state.notes, event))
        case SweepEnded():
            return replace(state, ended=event)


def _limit(record: Record) -> int | None:
    match record.outcome:
        case Measured(memory=memory):
            return memory.limit_bytes
        case OutOfMemory(limit_bytes=limit):
            return limit
        case _:
            return None
