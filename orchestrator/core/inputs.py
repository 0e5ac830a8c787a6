"""Inputs of the controller: what a cluster, a study, a sampler or a user tells it.

Each has its time, `at`, in seconds since the epoch on the driver's clock, which never jumps.
Messages of a group may come late, twice or not at all; `handle` ignores what it does not expect.
"""

from dataclasses import dataclass

from orchestrator.core.events import SweepEnded, SweepStarted, TrialEnded
from orchestrator.core.notes import Note
from orchestrator.core.placement import CapacityRequest, Node
from orchestrator.core.reasons import TrialReason
from search_spaces.plan import Plan
from search_spaces.trial import Fingerprint, Outcome, PlanForecast, Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedTrial:
    """A trial that was running when its driver died.

    Attributes:
        number: Its number.
        plan: Its plan.
        reason: Why it ran.
        in_space: True if the plan is still one of the sweep's candidates.
    """

    number: int
    plan: Plan
    reason: TrialReason
    in_space: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverStarted:
    """A driver opened the study.

    Attributes:
        sweep: Its event, with the specification and the results of earlier drivers.
        interrupted: Trials that an earlier driver left running.
        device: "cpu" or "cuda".
        folder: Base of relative paths in the specification.
        request: The capacity to request.
        nodes_may_come: Whether other nodes may take the place of those that go.
        notes: What the user should know of study and nodes.
    """

    sweep: SweepStarted
    interrupted: tuple[InterruptedTrial, ...] = ()
    device: str
    folder: str
    request: CapacityRequest
    nodes_may_come: bool = True
    notes: tuple[Note, ...] = ()

    @property
    def at(self) -> float:
        """Time of the start."""
        return self.sweep.at


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesChanged:
    """The nodes that are up differ from those last reported."""

    nodes: tuple[Node, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time passed."""

    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProposed:
    """The sampler's answer to `Propose`.

    Attributes:
        plan: The plan to try next.
        reason: Why.
        saving: Share of a training run's time that the trial is expected to save; None: unknown.
        seconds: Expected duration of the trial; None: unknown.
        ask_seconds: How long the choice took, forecasts and search together.
    """

    plan: Plan
    reason: TrialReason
    saving: float | None = None
    seconds: float | None = None
    ask_seconds: float | None = None  # set by the driver, which measures it
    at: float = 0.0  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOpened:
    """The study's answer to `Open`: the trial's number, and its forecast if there is one."""

    number: int
    forecast: PlanForecast | None = None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalistsChosen:
    """The search's answer to `ChooseFinalists`: measured, feasible plans, the best one first.

    They may change from repeat to repeat. One plan alone is clearly the best.
    """

    plans: tuple[Plan, ...]
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A group's report on its trial.

    Attributes:
        group: Name of the group.
        number: Number of the trial.
        validation: True if it was the validation of that trial.
        outcome: Its outcome.
        fingerprint: Of the workers; None if they did not start.
        started_at: Seconds since the epoch, on the group's clock.
        ended_at: The same.
        workers_seconds: From `started_at` until the workers were ready.
        workers_ended: True if the workers ended.
        lost_nodes: Ids of nodes that could not be reached after the workers had ended.
        faults: What is still running or still holds memory, a sentence each.
        forecast: Of its plan, made before this result was known; for a trial without one.
    """

    group: str
    number: int
    validation: bool
    outcome: Outcome
    fingerprint: Fingerprint | None
    started_at: float
    ended_at: float
    workers_seconds: float = 0.0
    workers_ended: bool = False
    lost_nodes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    forecast: PlanForecast | None = None  # set by the driver, which receives the report
    at: float = 0.0  # the same


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsEnded:
    """The processes that run the trials of groups ended: as they were told to, or they died.

    `faults` says what is still running or still holds memory, a sentence each. `lost_contact` is
    True if they left by themselves, and so never ran what they had been sent.
    """

    groups: tuple[str, ...]
    faults: tuple[str, ...] = ()
    lost_contact: bool = False
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    """A signal stops the sweep."""

    cause: Stopped
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyUnavailable:
    """The study could not be written: no trial follows. It lacks the result `unwritten`."""

    unwritten: TrialEnded | None = None
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EndWritten:
    """The study's answer to `End`: how the sweep ended, with the search's regret bound."""

    ended: SweepEnded
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message for the user from study, forecasts, search or host."""

    notes: tuple[Note, ...]
    at: float


Answer = PlanProposed | TrialOpened | FinalistsChosen | EndWritten | StudyUnavailable
Input = Answer | NodesChanged | Tick | TrialFinished | GroupsEnded | StopRequested | Notice
