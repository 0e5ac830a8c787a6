"""Nodes that come and go, and worker groups that run trials in virtual time."""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import final

from benchmarks.simulation.invariants import DriverChecks, crashed
from benchmarks.simulation.jobs import FINGERPRINT, Job, ending_of
from benchmarks.simulation.world import World
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.inputs import GroupsEnded, Input, TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import Node, Placement, Shortfall
from search_spaces.trial import Crashed, Outcome, TimedOut

_SILENT_SECONDS = 120.0  # before a silent group is killed
_START_SECONDS = 9.0  # of workers
_NOT_STARTED = Crashed(cause="start_failed", rank=None, phase="starting", detail="no space left")
_FULL = Crashed(cause="disk_full", rank=0, phase="checkpoint", detail="no space left")
_DIED = Crashed(cause="worker_died", rank=0, phase="running the trial", detail="connection lost")


@final
class Nodes:
    """The nodes of the cluster, which all drivers share.

    Attributes:
        up: Nodes that work.
        listed: Nodes that the cluster lists, by id: a lost one for some time longer.
    """

    def __init__(self, world: World, job: Job) -> None:
        self._world = world
        self._job = job
        self.up: dict[str, Node] = {node.id: node for node in job.nodes}
        self.listed: dict[str, Node] = dict(self.up)
        self.lost: list[Callable[[str], None]] = []  # called with the id of each lost node
        self._count = len(job.nodes)

    def lose(self, *, preempted: bool, returns_after: float = 600.0) -> None:
        """Loses a node. A preempted one leaves the list first; half of them return."""
        if not self.up:
            return
        random = self._world.random
        name = random.choice(list(self.up))
        node = self.up.pop(name)
        if preempted:
            self.listed.pop(name, None)
        else:
            self._world.after(random.uniform(0, 90), lambda: self._unlist(name))
        for tell in list(self.lost):
            tell(name)
        if random.random() < 0.5:
            self._world.after(random.uniform(10, returns_after), lambda: self._come(node))

    def request(self, need: Shortfall) -> None:
        """Does what an autoscaler does, which may deliver or not."""
        if not need.bundles or self._world.occurs("nodes_never_come"):
            return
        slots = max(node.slots for node in self._job.nodes)
        self._count += 1
        name = f"node-{self._count}"
        node = Node(id=name, name=name, slots=slots, address=f"{name}:1")
        if len(self.up) < 2 * len(self._job.nodes):
            self._world.after(self._world.random.uniform(20, 200), lambda: self._come(node))

    def heal(self) -> None:
        """Brings all nodes back."""
        for node in self._job.nodes:
            self._come(node)
        self.listed = dict(self.up)

    def _come(self, node: Node) -> None:
        self.up[node.id] = self.listed[node.id] = node

    def _unlist(self, name: str) -> None:
        if name not in self.up:
            self.listed.pop(name, None)


@dataclass
class _Group:
    name: str
    inbox: deque[Run | Release | Dismiss] = field(default_factory=deque)
    started: bool = False
    alive: bool = True
    silent: bool = False  # it does nothing any more
    running: Run | None = None
    workers: Placement | None = None
    turn: int = 0  # grows with each trial: what is scheduled for an earlier one is void


@final
class VirtualCluster(AbstractCluster):
    """The groups of one driver. Whatever they report goes to `deliver`."""

    def __init__(
        self,
        world: World,
        seed: int,
        nodes: Nodes,
        checks: DriverChecks,
        *,
        deliver: Callable[[Input], None],
        on_kill: Callable[[str], None],
    ) -> None:
        self._world = world
        self._seed = seed
        self._nodes = nodes
        self._checks = checks
        self._deliver = deliver
        self._on_kill = on_kill
        self._groups: dict[str, _Group] = {}
        nodes.lost.append(self._lose_node)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.listed.values())

    def request_capacity(self, need: Shortfall) -> None:
        self._nodes.request(need)

    def start_group(self, group: str) -> None:
        self._groups[group] = made = _Group(group)
        seconds = self._world.random.uniform(1, 5)
        if self._world.occurs("group_failed_to_start"):
            self._world.after(seconds, lambda: self._end(made))
        else:
            self._world.after(seconds, lambda: self._start(made))

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        self._checks.sent(message, self.nodes())
        known = self._groups[group]
        known.inbox.append(message)
        if known.started and known.running is None:
            self._world.after(0.01, lambda: self._take(known))

    def kill(self, group: str) -> None:
        self._on_kill(group)
        self._checks.killed(group)
        known = self._groups[group]
        self._world.after(self._world.random.uniform(0, 10), lambda: self._end(known))

    def end_all(self) -> None:
        """Ends all groups, as the death of a driver does."""
        for group in self._groups.values():
            group.alive = False

    def lose_idle_group(self) -> None:
        """Lets a group die that runs nothing."""
        idle = [one for one in self._groups.values() if one.alive and one.running is None]
        if idle:
            self._end(self._world.random.choice(idle))

    def _start(self, group: _Group) -> None:
        group.started = True
        self._take(group)

    def _take(self, group: _Group) -> None:
        while group.alive and group.running is None and group.inbox:
            match group.inbox.popleft():
                case Run() as run:
                    self._run(group, run)
                case Release():
                    group.workers = None
                case Dismiss():
                    self._end(group)

    def _run(self, group: _Group, run: Run) -> None:
        world = self._world
        group.running = run
        group.turn += 1
        started_at = world.clock + world.random.uniform(-1, 1)  # the clock of another host
        starting = 0.0
        if run.fresh or group.workers != run.placement:
            starting = _START_SECONDS
            group.workers = run.placement
            if world.is_broken("start_failed"):
                self._later(group, 3.0, lambda: self._finish(group, run, _NOT_STARTED, started_at))
                return
        ending = ending_of(self._seed, run.request, run.deadline_seconds)
        seconds = ending.seconds * (20 if world.occurs("straggler") else 1)
        outcome = ending.outcome
        if seconds > run.deadline_seconds:
            seconds = run.deadline_seconds
            outcome = TimedOut(deadline_seconds=seconds, detail="running did not finish")
        assert run.placement is not None
        if missing := run.placement.nodes - self._nodes.up.keys():
            delay = world.random.uniform(5, 20)
            self._later(group, delay, lambda: self._finish(group, run, _DIED, started_at, missing))
            return
        if world.occurs("group_silent"):
            group.silent = True
            self._later(group, _SILENT_SECONDS, lambda: self._end(group))
            return
        if world.occurs("group_died"):
            self._later(group, world.random.uniform(0, seconds), lambda: self._end(group))
            return
        self._later(
            group, starting + seconds, lambda: self._finish(group, run, outcome, started_at)
        )

    def _later(self, group: _Group, seconds: float, act: Callable[[], None]) -> None:
        ticket = group.turn

        def unless_void() -> None:
            if group.alive and group.turn == ticket:
                act()

        self._world.after(seconds, unless_void)

    def _finish(
        self,
        group: _Group,
        run: Run,
        outcome: Outcome,
        started_at: float,
        lost: Collection[str] = (),
    ) -> None:
        """Reports the end of a trial, with the nodes that were lost."""
        world = self._world
        group.running = None
        group.turn += 1
        if outcome.kind == "measured" and world.is_broken("disk_full"):
            outcome = _FULL
        ended = crashed(outcome, "worker_died", "start_failed") or outcome.kind == "timed_out"
        if ended:
            group.workers = None
        report = TrialFinished(
            group=group.name,
            number=run.request.number,
            validation=run.request.validation,
            outcome=outcome,
            fingerprint=FINGERPRINT,
            started_at=started_at,
            ended_at=max(world.clock, started_at),
            workers_ended=ended,
            lost_nodes=tuple(sorted(lost)),
        )
        if not world.occurs("report_lost"):
            late = world.random.uniform(1, 200) if world.occurs("report_late") else 0.0
            world.after(late, lambda: self._deliver(report))
            if world.occurs("report_doubled"):
                world.after(world.random.uniform(0, 100), lambda: self._deliver(report))
        self._take(group)

    def _end(self, group: _Group) -> None:
        if group.alive:
            group.alive = False
            self._deliver(GroupsEnded(groups=(group.name,), at=0.0))

    def _lose_node(self, node: str) -> None:
        for group in self._groups.values():
            if group.workers and node in group.workers.nodes:
                group.workers = None
                if group.alive and group.running is not None and not group.silent:
                    self._fail_later(group, group.running, node)

    def _fail_later(self, group: _Group, run: Run, node: str) -> None:
        began = self._world.clock
        group.turn += 1
        delay = self._world.random.uniform(5, 30)
        self._later(group, delay, lambda: self._finish(group, run, _DIED, began, [node]))
