"""Instructions of the controller: what the driver has to do next, in this order."""

from dataclasses import dataclass

from orchestrator.core.events import Event, TrialEnded
from orchestrator.core.placement import Placement, Shortfall
from orchestrator.core.reasons import StopReason, TrialReason
from search_spaces.plan import Plan
from search_spaces.trial import TrialRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Propose:
    """Ask the sampler for an untried plan, and answer with `PlanProposed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """Open a trial in the study, and answer with `TrialOpened`.

    `ask_seconds` is as in `TrialStarted`.
    """

    plan: Plan
    reason: TrialReason
    ask_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChooseFinalists:
    """Ask the search for the plans that it believes to be best; answer with `FinalistsChosen`."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartGroup:
    """Start the process that runs a group's trials; its workers start with the first one."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Run a trial on a group; the message that the group receives.

    Attributes:
        group: Name of the group.
        request: What its workers are to do.
        device: "cpu" or "cuda".
        folder: Base of relative paths.
        deadline_seconds: Then the trial is ended.
        placement: The nodes of the ranks; None: any with room.
        addresses: Id and `host:port` of each node, to check that it can be reached.
        fresh: True if the group's present workers cannot run it, and new ones have to start.
    """

    group: str
    request: TrialRequest
    device: str
    folder: str
    deadline_seconds: float
    placement: Placement | None = None
    addresses: tuple[tuple[str, str], ...] = ()
    fresh: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Stop a group's workers; the group stays."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Dismiss:
    """End a group, since there are no more trials."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """End a group that does not answer."""

    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCapacity:
    """Keep nodes up and request missing ones; replaces all earlier requests."""

    need: Shortfall


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Store the result of a trial or a validation, then announce its end."""

    ended: TrialEnded


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandon:
    """Close a trial that no group runs any more, then announce its end.

    A cancelled trial gets no record, so that its plan may run again. `ended` is None for a trial of
    an earlier driver, whose end is not announced.
    """

    number: int
    ended: TrialEnded | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """Tell the callbacks of an event."""

    event: Event


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """Store how the sweep ended, with the regret bound of the untried plans, and announce it."""

    reason: StopReason
    at: float


Question = Propose | Open | ChooseFinalists  # each has an answer
GroupMessage = Run | Release | Dismiss  # for a group, which takes its messages in order
ClusterRequest = StartGroup | Kill | RequestCapacity
Closing = Store | Abandon  # of a trial, in the study
Instruction = Question | GroupMessage | ClusterRequest | Closing | Announce | End
