"""Messages between the controller, which decides on trials, and the runners that run them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.events import TrialStarted
from orchestrator.core.notes import Note
from orchestrator.core.placement import Placement
from orchestrator.core.records import Record
from search_spaces.trial import Fingerprint, Outcome, PlanForecast, TrialRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A trial for a runner; a `fresh` one needs workers that have run nothing before."""

    request: TrialRequest
    device: str
    deadline_seconds: float
    folder: str  # that relative paths start from
    fresh: bool = False
    placement: Placement | None = None  # None: any nodes with room
    evicted: tuple[Placement, ...] = ()  # idle groups whose workers must end to make room
    addresses: tuple[tuple[str, str], ...] = ()  # its nodes: id, and the host:port that is probed


@dataclass(frozen=True, slots=True)
class Later:
    """No trial can start until a running one has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """A runner's report on a trial; times are seconds since the epoch."""

    number: int
    outcome: Outcome
    fingerprint: Fingerprint | None
    notes: tuple[Note, ...]
    started_at: float
    ended_at: float
    lost: tuple[str, ...] = ()  # ids of nodes that were lost while it ran
    workers_seconds: float = 0.0  # from `started_at` until its workers were ready

    def record_of(self, trial: TrialStarted, forecast: PlanForecast | None) -> Record:
        """Returns the record of the trial."""
        return Record(
            number=self.number,
            plan=trial.plan,
            outcome=self.outcome,
            reason=trial.reason,
            started_at=self.started_at,
            ended_at=self.ended_at,
            fingerprint=self.fingerprint,
            forecast=forecast,
            validation=trial.validation,
        )


class AbstractDriver(ABC):
    """Interface of the controller for the loop that runs trials."""

    @abstractmethod
    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        """Returns the next trial; None when the sweep is over.

        Args:
            idle: Placements of the groups that wait for a trial.
        """

    @abstractmethod
    def conclude(self, report: TrialReport) -> None:
        """Records the end of a trial."""

    @abstractmethod
    def lose(self, number: int, notes: Sequence[Note] = ()) -> None:
        """Records that a trial's runner died without a report; notes are for the user."""
