"""The state of the controller: everything that its decisions depend on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import inf

from orchestrator.core.events import TrialEnded, TrialStarted
from orchestrator.core.inputs import DriverStarted
from orchestrator.core.instructions import Question
from orchestrator.core.placement import Node, Placement, Processes, Shortfall
from orchestrator.core.reasons import Retry, StopReason
from orchestrator.core.state import SweepState
from search_spaces.plan import Plan

_NOTICE_SECONDS = 120.0  # a lost node may be listed as up for this long; if it is after, it is back


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A worker group.

    Attributes:
        processes: Its workers, which hold their nodes; None without workers.
        trial: Number of the trial that it runs; None if it is idle.
        overdue_at: When its trial's report is overdue, in seconds since the epoch.
        dismissed: True if it was told to end.
    """

    processes: Processes | None = None
    trial: int | None = None
    overdue_at: float = inf
    dismissed: bool = False

    @property
    def placement(self) -> Placement | None:
        """Nodes of its workers; None without workers."""
        return self.processes.placement if self.processes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerState:
    """State of the controller between two inputs.

    Attributes:
        sweep: The sweep so far, the only copy; `sweep.running` are the running trials.
        driver: The first input, with what does not change.
        nodes: The nodes that are up, as last reported.
        groups: The groups by name.
        groups_started: Number of groups started so far.
        retries: Plans to run once more.
        pending: The trial that was started and waits for room; None if none does.
        out_of_room_since: Since when no running trial could make room for it, in seconds since the
            epoch.
        awaited: The instruction whose answer is awaited; nothing else is started meanwhile.
        machine_failures: Failures in a row, over all plans, that no plan is blamed for.
        paused_until: Until when nothing is started after one of them, in seconds since the epoch.
        suspects: Results that blame a plan, kept until the machine is known to work.
        repeats_done: True once no repeat is due, until another trial ends.
        stop_reason: Why the search ended; None while it goes on.
        ended: True once nothing is started any more.
        node_losses: Number of node losses during trials of a plan, by plan key.
        avoided: Nodes on which workers of a plan died, by plan key.
        lost_at: Time of each node's loss, in seconds since the epoch.
        names: Names of nodes, by id.
        need: The capacity that was last requested.
    """

    sweep: SweepState
    driver: DriverStarted
    nodes: tuple[Node, ...] = ()
    groups: Mapping[str, Group] = field(default_factory=dict)
    groups_started: int = 0
    retries: tuple[tuple[Plan, Retry], ...] = ()
    pending: TrialStarted | None = None
    out_of_room_since: float | None = None
    awaited: Question | None = None
    machine_failures: int = 0
    paused_until: float = -inf
    suspects: tuple[TrialEnded, ...] = ()
    repeats_done: bool = False
    stop_reason: StopReason | None = None
    ended: bool = False
    node_losses: Mapping[str, int] = field(default_factory=dict)
    avoided: Mapping[str, frozenset[str]] = field(default_factory=dict)
    lost_at: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    need: Shortfall | None = None

    @property
    def wait_seconds(self) -> float:
        """Longest wait for missing nodes; none for the node of a Ray that is gone."""
        if not self.nodes and not self.driver.nodes_may_come:
            return 0.0
        return self.sweep.spec.cluster.wait_minutes * 60

    def running(self, number: int) -> TrialStarted | None:
        """Returns the trial or validation of a number, if it is under way."""
        return next((trial for trial in self.sweep.running if trial.number == number), None)

    def placements(self) -> list[Placement]:
        """Returns the placements of the trials that run."""
        return [
            group.placement
            for group in self.groups.values()
            if group.trial is not None and group.placement
        ]

    def idle_groups(self) -> Iterator[tuple[str, Group]]:
        """Yields the groups that can take a trial, by name."""
        return (
            (name, group)
            for name, group in self.groups.items()
            if group.trial is None and not group.dismissed
        )

    def usable_nodes(self, now: float) -> tuple[Node, ...]:
        """Returns the nodes that are up, without those just lost, which may still be listed."""
        if not self.lost_at:
            return self.nodes
        return tuple(
            node for node in self.nodes if now - self.lost_at.get(node.id, -inf) > _NOTICE_SECONDS
        )
