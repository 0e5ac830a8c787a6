"""What passes between who decides about trials and who runs them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.core.events import TrialStarted
from orchestrator.core.placement import Placement
from search_spaces.trial import Fingerprint, Outcome, PlanForecast, Record, TrialRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A trial as its runner gets it; a `fresh` one wants workers that ran nothing before."""

    request: TrialRequest
    device: str
    deadline_seconds: float
    folder: str  # where relative paths start
    fresh: bool = False
    placement: Placement | None = None  # None: wherever there is room
    evicted: tuple[Placement, ...] = ()  # of groups that wait, whose workers have to go for it
    doors: tuple[tuple[str, str], ...] = ()  # of its nodes: ids, and where each is knocked at


@dataclass(frozen=True, slots=True)
class Later:
    """Nothing can be run until a trial that is under way has ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialReport:
    """What a runner says of a trial; times are seconds since the epoch."""

    number: int
    outcome: Outcome
    fingerprint: Fingerprint | None
    notes: tuple[str, ...]
    started_at: float
    ended_at: float
    lost: tuple[str, ...] = ()  # ids of nodes that went while it ran
    workers_seconds: float = 0.0  # from `started_at` until its workers were ready

    def record_of(self, trial: TrialStarted, forecast: PlanForecast | None) -> Record:
        """The record of a trial that ended so."""
        return Record(
            number=self.number,
            plan=trial.plan,
            outcome=self.outcome,
            why=trial.why,
            started_at=self.started_at,
            ended_at=self.ended_at,
            fingerprint=self.fingerprint,
            forecast=forecast,
            validation=trial.validation,
        )


class AbstractDriver(ABC):
    """Who decides what is tried next."""

    @abstractmethod
    def propose(self, idle: Sequence[Placement] = ()) -> Assignment | Later | None:
        """The next trial; None: the sweep is over.

        Args:
            idle: Where groups have workers that wait for one.
        """

    @abstractmethod
    def conclude(self, report: TrialReport) -> None:
        """A trial ended."""

    @abstractmethod
    def lose(self, number: int, notes: Sequence[str] = ()) -> None:
        """A trial's runner died without a report; the notes are for a person."""
