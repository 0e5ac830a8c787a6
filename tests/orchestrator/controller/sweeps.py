"""A sweep whose cluster is played by the test: a real controller on a real study in SQLite."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from orchestrator.controller import Controller
from orchestrator.core.cluster import AbstractCluster
from orchestrator.core.events import Event, Noted, TrialEnded
from orchestrator.core.inputs import Input, StopRequested, TrialFinished
from orchestrator.core.instructions import Dismiss, Release, Run
from orchestrator.core.placement import CapacityRequest, Node, Shortfall
from orchestrator.core.state import AbstractCallback, SweepState
from orchestrator.forecast.forecaster import SweepForecasts
from orchestrator.journal import Journal
from orchestrator.report.reasons import note_words
from orchestrator.study.study import Study
from search_spaces.facts import ClusterFacts
from search_spaces.plan import Plan
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Crashed, Outcome, Stopped
from tests.orchestrator.records import BEGAN, make_space
from tests.outcomes import CPU_FINGERPRINT, LIMIT_BYTES, make_measured

E = TypeVar("E")
DIED = Crashed(cause="worker_died", rank=1, phase="running the trial", detail="connection lost")

CLUSTER = ClusterFacts(device="cpu", slots=2, memory_limit_bytes=LIMIT_BYTES)


class Recorder(AbstractCallback):
    """Records all events."""

    def __init__(self) -> None:
        self.heard: list[tuple[Event, SweepState]] = []

    def on_event(self, event: Event, state: SweepState) -> None:
        self.heard.append((event, state))

    def close(self) -> None:
        pass

    @property
    def kinds(self) -> list[type[Event]]:
        return [type(event) for event, _ in self.heard]


@dataclass
class Clock:
    """A clock that only the test advances."""

    now: float = BEGAN

    def __call__(self) -> float:
        return self.now


@dataclass
class PlayedCluster(AbstractCluster):
    """Nodes that the test adds and removes, and groups that do nothing by themselves."""

    there: list[Node] = field(default_factory=lambda: make_nodes("a"))
    started: list[str] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)  # that the test has not taken yet
    dismissed: list[str] = field(default_factory=list)

    def nodes(self) -> tuple[Node, ...]:
        return tuple(self.there)

    def request_capacity(self, need: Shortfall) -> None:
        pass

    def start_group(self, group: str) -> None:
        self.started.append(group)

    def send(self, group: str, message: Run | Release | Dismiss) -> None:
        match message:
            case Run():
                self.runs.append(message)
            case Dismiss():
                self.dismissed.append(group)
            case Release():
                pass

    def kill(self, group: str) -> None:
        pass


def make_nodes(*names: str, slots: int = 2) -> list[Node]:
    """Nodes with room for two ranks."""
    return [Node(id=name, slots=slots, name=name, address=f"{name}:1") for name in names]


@dataclass
class Sweep:
    """A driver; a second one of the same specification resumes the sweep.

    `groups` are the most at the same time.
    """

    spec: SweepSpec
    cluster: PlayedCluster = field(default_factory=PlayedCluster)
    groups: int = 1
    clock: Clock = field(default_factory=Clock)
    forecasts: SweepForecasts = field(default_factory=SweepForecasts)
    callbacks: tuple[AbstractCallback, ...] = ()
    secrets: tuple[str, ...] = ()
    journal: Journal = field(default_factory=Journal)
    compile_seconds: float = 0.0

    def __post_init__(self) -> None:
        space = make_space(self.spec)
        self.study = Study(self.spec, "demo", space)
        self.recorder = Recorder()
        request = CapacityRequest(groups=self.groups, ranks=2)
        started = self.study.driver_started(
            *(CLUSTER, request, self.groups, self.clock()), compile_seconds=self.compile_seconds
        )
        self.controller = Controller(
            started,
            self.study,
            self.cluster,
            (self.recorder, *self.callbacks),
            self.forecasts,
            self.clock,
            self.journal,
            self.secrets,
        )

    @property
    def state(self) -> SweepState:
        return self.controller.state.sweep

    @property
    def notes(self) -> list[str]:
        return [note_words(event.note) for event in self.events(Noted)]

    @property
    def outcomes(self) -> list[Outcome]:
        return [event.record.outcome for event in self.events(TrialEnded)]

    def events(self, kind: type[E]) -> list[E]:
        return [event for event, _ in self.recorder.heard if isinstance(event, kind)]

    def next(self) -> Run | None:
        """Returns the next trial that a group is told to run, None if none can start now."""
        if not self.cluster.runs:
            self.controller.step()
        return self.cluster.runs.pop(0) if self.cluster.runs else None

    def ask(self) -> Run:
        """Returns the next trial; there must be one."""
        run = self.next()
        assert run is not None
        return run

    def report(self, run: Run, outcome: Outcome, *lost: str) -> None:
        """Reports a trial that took ten seconds; its group has lost the nodes `lost`.

        Workers of a trial that lost one have ended.
        """
        self.clock.now += 10
        finished = TrialFinished(
            group=run.group,
            number=run.request.number,
            validation=run.request.validation,
            outcome=outcome,
            fingerprint=CPU_FINGERPRINT,
            started_at=self.clock.now - 9,
            ended_at=self.clock.now - 1,
            workers_ended=bool(lost) or outcome == DIED,
            lost_nodes=lost,
            at=self.clock.now,
        )
        self.put(finished)

    def stop(self, by: str = "SIGTERM") -> None:
        self.put(StopRequested(cause=Stopped(by=by), at=0.0))

    def put(self, given: Input) -> None:
        self.controller.put(given)
        self.controller.step()

    def run(self, outcomes: Iterator[Outcome] | None = None) -> list[Plan]:
        """Runs trials until there are no more."""
        plans = []
        while (run := self.next()) is not None:
            self.report(run, make_measured() if outcomes is None else next(outcomes))
            plans.append(run.request.plan)
        return plans
