"""Placement of trials: waiting for room, requests for nodes, and lost nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.controller import PlacingDriver
from orchestrator.core.events import Noted, TrialEnded
from orchestrator.core.messages import Assignment, Later, TrialReport
from orchestrator.core.placement import AbstractNodes, CapacityRequest, Node, Placement, Shortfall
from orchestrator.core.reasons import NoPlanForNodes, Retry
from orchestrator.report.reasons import note_words
from search_spaces.trial import Cancelled, Crashed, Measured, NodesLost, NoRoom, Outcome
from tests.orchestrator.controller.test_controller import Sweep
from tests.orchestrator.records import make_spec
from tests.outcomes import CPU_FINGERPRINT, make_measured

DIED = Crashed(cause="worker_died", rank=1, phase="running the trial", detail="connection lost")


@dataclass
class Cluster(AbstractNodes):
    """Nodes that the test adds and removes."""

    there: list[Node]
    needs: list[Shortfall] = field(default_factory=list)

    def up(self) -> tuple[Node, ...]:
        return tuple(self.there)

    def request_capacity(self, needs: Sequence[Shortfall]) -> None:
        self.needs = list(needs)


@dataclass
class Placed:
    """A driver on such a cluster, with its clock and recorder."""

    sweep: Sweep
    cluster: Cluster
    groups: int = 1
    kinds: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        self.driver = PlacingDriver(
            self.sweep.driver,
            self.cluster,
            wanted=[
                CapacityRequest(groups=self.groups, ranks=2, accelerator=kind)
                for kind in self.kinds
            ],
            wait_seconds=60,
            clock=self.sweep.clock,
        )

    def ask(self, *idle: Placement) -> Assignment:
        given = self.driver.propose(idle)
        assert isinstance(given, Assignment)
        return given

    def report(self, given: Assignment, outcome: Outcome, *lost: str) -> None:
        self.driver.conclude(
            TrialReport(
                number=given.request.number,
                outcome=outcome,
                fingerprint=CPU_FINGERPRINT,
                notes=(),
                started_at=self.sweep.clock.now,
                ended_at=self.sweep.clock.now + 1,
                lost=lost,
            )
        )

    @property
    def notes(self) -> list[str]:
        return [
            note_words(event.note) for event, _ in self.sweep.ears.heard if isinstance(event, Noted)
        ]

    @property
    def outcomes(self) -> list[Outcome]:
        heard = (event for event, _ in self.sweep.ears.heard if isinstance(event, TrialEnded))
        return [event.record.outcome for event in heard]


def nodes(*names: str) -> list[Node]:
    return [Node(id=name, slots=2, name=name, address=f"{name}:1") for name in names]


@pytest.fixture
def placed(tmp_path: Path) -> Callable[..., Placed]:
    """Returns a function that makes drivers for plans of two ranks, on nodes with two slots."""

    def make(*names: str, **sections: object) -> Placed:
        spec = make_spec(
            **{
                "study": {"folder": str(tmp_path), "sampler": "random"},
                "budget": {"trials": 4, "minutes": 60, "trial_seconds": 60},
                **sections,
            }
        )
        return Placed(Sweep(spec), Cluster(nodes(*names)))

    return make


Make = Callable[..., Placed]


def test_each_trial_has_a_node_and_what_was_decided_waits_for_one(placed: Make) -> None:
    ours = placed("a", "b")
    first, second = ours.ask(), ours.ask()
    assert first.placement == Placement((("a", 2),))
    assert second.placement == Placement((("b", 2),))

    assert isinstance(ours.driver.propose(), Later)
    ours.sweep.clock.now += 600  # while others run, it is no matter how long
    assert isinstance(ours.driver.propose(), Later)
    assert len(ours.sweep.driver.state.running) == 3  # it is decided once, not at each question
    waiting = ours.sweep.driver.state.running[-1]
    ours.report(second, make_measured())

    third = ours.ask(Placement((("b", 2),)))
    assert third.request.number == waiting.number
    assert third.placement == second.placement
    assert all(not need.bundles for need in ours.cluster.needs)


def test_a_lost_node_costs_a_trial_that_is_run_again(placed: Make) -> None:
    ours = placed("a", "b")
    first = ours.ask()
    ours.report(first, DIED, "a")  # the cluster has not noticed yet, and says that it is up

    again = ours.ask()
    assert again.addresses == (("b", "b:1"),)
    assert again.request.plan == first.request.plan
    assert again.request.number != first.request.number
    assert again.placement == Placement((("b", 2),))
    assert isinstance(ours.outcomes[0], Cancelled)
    assert ours.sweep.driver.state.running[0].reason == Retry(
        trial=0, cause=NodesLost(nodes=("a",))
    )
    ours.report(again, make_measured())
    counted = 1
    while isinstance(given := ours.driver.propose(), Assignment):
        ours.report(given, make_measured())
        counted += 1
    assert counted == 4  # the budget: the loss took nothing from it


def test_the_last_plan_is_run_again_too(placed: Make) -> None:
    space = {"zero_stage": [0], "micro_batch": [1], "checkpoint_ratio": [0.0, 1.0]}
    space |= {"attention": ["sdpa"], "batching": ["padded"]}
    ours = placed("a", "b", space=space)
    assert len(ours.sweep.driver.state.space.candidates) == 2
    ours.report(ours.ask(), make_measured())
    last = ours.ask()
    ours.report(last, DIED, "a")

    assert ours.ask().request.plan == last.request.plan


def test_a_plan_that_nodes_do_not_survive_is_blamed(placed: Make) -> None:
    ours = placed("a", "b", "c", "d")
    plan = ours.ask()
    for name in ("a", "b"):
        ours.report(plan, DIED, name)
        again = ours.ask()
        assert again.request.plan == plan.request.plan
        plan = again
    ours.report(plan, DIED, "c")

    assert ours.outcomes[-1] == DIED
    assert ours.ask().request.plan != plan.request.plan


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_a_plan_that_dies_by_itself_is_run_once_more_elsewhere(placed: Make, nodes: str) -> None:
    """It returns to the same node only without another one."""
    ours = placed(*nodes)
    first = ours.ask()
    ours.report(first, DIED)
    assert first.placement is not None
    second = ours.ask(first.placement)
    assert second.request.plan == first.request.plan
    assert second.placement == Placement(((nodes[-1], 2),))
    ours.report(second, DIED)

    assert ours.outcomes[-1] == DIED
    assert ours.ask().request.plan != first.request.plan


def test_missing_nodes_are_asked_for_and_awaited(placed: Make) -> None:
    ours = placed("a")
    first = ours.ask()
    ours.cluster.there = []
    ours.report(first, DIED, "a")

    assert isinstance(ours.driver.propose(), Later)
    ours.sweep.clock.now += 59
    assert isinstance(ours.driver.propose(), Later)
    assert ours.cluster.needs == [Shortfall(bundles=(1, 1))]
    waits = [note for note in ours.notes if "waits for room" in note]
    assert waits == ["trial 1 waits for room for 2 ranks, up to 1 minutes; available: none"]
    ours.cluster.there = nodes("new")

    again = ours.ask()
    assert again.placement == Placement((("new", 2),))
    ours.cluster.there = []
    ours.report(again, DIED, "new")
    for _ in range(2):  # the wait begins anew
        assert isinstance(ours.driver.propose(), Later)
        ours.sweep.clock.now += 59


@pytest.fixture
def kinds(placed: Make) -> Placed:
    """A driver for plans on two kinds of nodes, with one node of each."""
    sweep = placed(cluster={"accelerators": ["A100", "H100"]}).sweep
    there = [Node(id=kind.lower(), slots=2, kind=kind, name=kind) for kind in ("A100", "H100")]
    return Placed(sweep, Cluster(there), kinds=("A100", "H100"))


def test_while_one_kind_is_busy_plans_for_the_other_are_tried(kinds: Placed) -> None:
    for _ in range(2):
        first, second = kinds.ask(), kinds.ask()
        for given in (first, second):
            assert given.placement is not None
            assert given.placement.nodes == {given.request.plan.accelerator.lower()}
        assert first.request.plan.accelerator != second.request.plan.accelerator
        kinds.report(first, make_measured())
        kinds.report(second, make_measured())


def test_a_plan_waits_for_nodes_of_its_kind(kinds: Placed) -> None:
    first = kinds.ask()
    mine = first.request.plan.accelerator
    kinds.report(first, DIED, mine.lower())  # and is run again
    kinds.cluster.there = [node for node in kinds.cluster.there if node.kind != mine]
    (other,) = kinds.cluster.there

    beside = kinds.ask(Placement(((other.id, 2),)))
    assert beside.request.plan.accelerator == other.kind
    assert isinstance(kinds.driver.propose(), Later)
    assert Shortfall(bundles=(1, 1), accelerator=mine) in kinds.cluster.needs
    assert Shortfall(nodes=frozenset({other.id}), accelerator=other.kind) in kinds.cluster.needs
    assert any(f"waits for room for 2 ranks on {mine}" in note for note in kinds.notes)
    kinds.cluster.there.append(Node(id="new", slots=2, kind=mine))

    again = kinds.ask()
    assert again.request.plan == first.request.plan
    assert again.placement == Placement((("new", 2),))


def test_a_kind_whose_nodes_do_not_come_is_left_out(kinds: Placed) -> None:
    """Trials on the other kind continue meanwhile and after."""
    first, second = kinds.ask(), kinds.ask()
    mine, there = (given.request.plan.accelerator for given in (first, second))
    kinds.report(first, DIED, mine.lower())
    kinds.cluster.there = [node for node in kinds.cluster.there if node.kind == there]
    assert isinstance(kinds.driver.propose(), Later)  # what was lost is decided, and waits
    for _ in range(2):
        kinds.report(second, make_measured())
        second = kinds.ask()
        assert second.request.plan.accelerator == there
        assert isinstance(kinds.driver.propose(), Later)
        kinds.sweep.clock.now += 40
    assert isinstance(kinds.driver.propose(), Later)
    left_out = [note for note in kinds.notes if note.startswith(f"plans for {mine} are left out")]

    assert len(left_out) == 1
    assert "no room for 2 ranks on " in left_out[0]
    assert [need.accelerator for need in kinds.cluster.needs] == [there]


def test_a_sweep_ends_when_only_plans_without_nodes_are_left(placed: Make) -> None:
    space = {"zero_stage": [0], "micro_batch": [1], "checkpoint_ratio": [0.0]}
    space |= {"attention": ["sdpa"], "batching": ["padded"]}
    cluster = {"accelerators": ["A100", "H100"]}
    sweep = placed(cluster=cluster, space=space).sweep
    there = [Node(id="h", slots=2, kind="H100")]
    ours = Placed(sweep, Cluster(there), kinds=("A100", "H100"))
    ours.report(ours.ask(), make_measured())
    assert isinstance(ours.driver.propose(), Later)
    ours.sweep.clock.now += 61

    assert ours.driver.propose() is None
    ended = ours.sweep.driver.state.ended
    assert ended is not None
    assert ended.reason == NoPlanForNodes()


def test_nobody_waits_for_ever(placed: Make) -> None:
    ours = placed("a")
    ours.report(ours.ask(), make_measured())
    ours.cluster.there = [Node(id="small", slots=1)]

    assert isinstance(ours.driver.propose(), Later)
    ours.sweep.clock.now += 61
    assert ours.driver.propose() is None
    ended = ours.sweep.driver.state.ended
    assert ended is not None
    assert ended.reason == NoRoom(ranks=2, minutes=1.0, available=((1, 1, ""),))
    assert [type(outcome) for outcome in ours.outcomes] == [Measured, Cancelled]
    later = Placed(Sweep(ours.sweep.spec), Cluster(nodes("a")))  # the plan is still untried
    assert len(later.sweep.driver.state.records) == 1
    assert later.ask().placement == Placement((("a", 2),))


def test_a_validation_without_room_ends_the_sweep(placed: Make) -> None:
    ours = placed("a", "b", validation={"enabled": True}, budget={"trials": 1, "minutes": 60})
    ours.report(ours.ask(), make_measured())
    ours.cluster.there = []

    assert isinstance(ours.driver.propose(), Later)
    ours.sweep.clock.now += 61
    assert ours.driver.propose() is None
    ended = ours.sweep.driver.state.ended
    assert ended is not None
    assert isinstance(ended.reason, NoRoom)


def test_a_validation_needs_room_for_itself_alone(placed: Make) -> None:
    sweep = placed(validation={"enabled": True}, budget={"trials": 1, "minutes": 60}).sweep
    ours = Placed(sweep, Cluster(nodes("a", "b")), groups=2)
    first = ours.ask()
    assert ours.cluster.needs == [Shortfall(nodes=frozenset({"a", "b"}))]
    ours.report(first, make_measured())

    assert ours.ask().request.validation
    assert ours.cluster.needs == [Shortfall(nodes=frozenset({"a"}))]


def test_a_validation_whose_node_is_lost_is_run_again(placed: Make) -> None:
    ours = placed("a", "b", validation={"enabled": True}, budget={"trials": 1, "minutes": 60})
    ours.report(ours.ask(), make_measured())
    validation = ours.ask()
    assert validation.request.validation
    ours.report(validation, replace(DIED), "a")

    again = ours.ask()
    assert again.request.validation
    assert again.request.plan == validation.request.plan
