"""Placement of trials: waiting for room, requests for nodes, and lost nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.notes import PlanBlamed
from orchestrator.core.placement import Node, Placement, Shortfall
from orchestrator.core.reasons import Retry, ended_by_machine
from search_spaces.trial import Cancelled, Measured, NodesLost, NoRoom
from tests.orchestrator.controller.sweeps import DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured

Make = Callable[..., Sweep]
ONE_PLAN = {
    "zero_stage": [0],
    "micro_batch": [1],
    "checkpoint_ratio": [0.0],
    "attention": ["sdpa"],
    "batching": ["padded"],
}


@pytest.fixture
def placed(tmp_path: Path) -> Make:
    """Returns a function that makes drivers for plans of two ranks, on nodes with two slots.

    A trial waits for room for a minute, and room is requested for one group.
    """

    def make(
        *nodes: str | Node,
        groups: int = 1,
        requested: int = 1,
        **sections: object,
    ) -> Sweep:
        cluster = {"workers": 2, "memory_gib": 0.5, "wait_minutes": 1}
        spec = make_spec(
            **{
                "study": {"folder": str(tmp_path), "sampler": "random"},
                "budget": {"trials": 4, "minutes": 60, "trial_seconds": 60},
                "cluster": cluster,
                **sections,
            }
        )
        there = [node if isinstance(node, Node) else make_nodes(node)[0] for node in nodes]
        return Sweep(spec, PlayedCluster(there), groups, requested)

    return make


def test_each_trial_has_a_node_and_what_was_decided_waits_for_one(placed: Make) -> None:
    ours = placed("a", "b", groups=3)
    first, second = ours.ask(), ours.ask()
    assert first.placement == Placement((("a", 2),))
    assert second.placement == Placement((("b", 2),))

    assert ours.next() is None
    ours.clock.now += 600  # while others run, it is no matter how long
    assert ours.next() is None
    assert len(ours.state.running) == 3  # it is decided once, not at each tick
    assert len(ours.cluster.started) == 2  # and takes no group as long as it waits
    waiting = ours.state.running[-1]
    ours.report(second, make_measured())

    third = ours.ask()
    assert third.request.number == waiting.number
    assert third.placement == second.placement
    assert third.group == second.group
    assert not third.fresh
    assert ours.cluster.need is not None
    assert not ours.cluster.need.bundles


def test_room_is_requested_for_as_many_groups_as_may_run(placed: Make) -> None:
    ours = placed("a", "b", groups=3, requested=3)
    ours.ask()
    ours.ask()
    assert ours.next() is None  # the third waits

    assert ours.cluster.need == Shortfall(nodes=frozenset({"a", "b"}), bundles=(2,))


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
    assert ours.state.running[0].reason == Retry(trial=0, cause=NodesLost(nodes=("a",)))
    ours.report(again, make_measured())
    counted = 1
    while (run := ours.next()) is not None:
        ours.report(run, make_measured())
        counted += 1
    assert counted == 4  # the budget: the loss took nothing from it


def test_the_last_plan_is_run_again_too(placed: Make) -> None:
    ours = placed("a", "b", space={**ONE_PLAN, "checkpoint_ratio": [0.0, 1.0]})
    assert len(ours.state.space.candidates) == 2
    ours.report(ours.ask(), make_measured())
    last = ours.ask()
    ours.report(last, DIED, "a")

    assert ours.ask().request.plan == last.request.plan


def test_a_plan_that_nodes_do_not_survive_is_blamed(placed: Make) -> None:
    ours = placed("a", "b", "c", "d")
    run = ours.ask()
    for name in ("a", "b"):
        ours.report(run, DIED, name)
        again = ours.ask()
        assert again.request.plan == run.request.plan
        run = again
    assert ours.notes == ["the worker group is replaced: a trial crashed (worker died)"] * 2
    ours.report(run, DIED, "c", faults=("a process still runs",))

    assert ours.outcomes[-1] == DIED
    assert ours.notes[-2] == "a process still runs"
    blamed = PlanBlamed(trial=run.request.number, loss=NodesLost(nodes=("c",)))
    assert ours.state.notes[-1].note == blamed
    assert ours.ask().request.plan != run.request.plan


@pytest.mark.parametrize("nodes", ["a", "ab"])
def test_a_plan_that_dies_by_itself_is_run_once_more_elsewhere(placed: Make, nodes: str) -> None:
    """It returns to the same node only without another one."""
    ours = placed(*nodes)
    first = ours.ask()
    ours.report(first, DIED)
    second = ours.ask()
    assert second.request.plan == first.request.plan
    assert second.placement == Placement(((nodes[-1], 2),))
    ours.report(second, DIED)

    assert ours.outcomes[-1] == DIED
    assert ours.ask().request.plan != first.request.plan


@pytest.mark.parametrize("ended", [False, True])
def test_a_retry_avoids_its_node_even_if_idle_workers_are_there(placed: Make, ended: bool) -> None:
    """Workers that a device error left are of no use to it, even before they are released."""
    ours = placed("a", "b")
    first = ours.ask()
    crash = replace(DIED, cause="device_error")
    ours.report(first, crash, workers_ended=ended)

    second = ours.ask()
    assert second.request.plan == first.request.plan
    assert second.placement == Placement((("b", 2),))


def test_missing_nodes_are_asked_for_and_awaited(placed: Make) -> None:
    ours = placed("a")
    first = ours.ask()
    ours.cluster.there = []
    ours.report(first, DIED, "a")

    assert ours.next() is None
    ours.clock.now += 59
    assert ours.next() is None
    assert ours.cluster.need == Shortfall(bundles=(1, 1))
    waits = [note for note in ours.notes if "waits for room" in note]
    assert waits == ["trial 1 waits for room for 2 ranks, up to 1 minutes; available: none"]
    ours.cluster.there = make_nodes("new")

    again = ours.ask()
    assert again.placement == Placement((("new", 2),))
    ours.cluster.there = []
    ours.report(again, DIED, "new")
    for _ in range(2):  # the wait begins anew
        assert ours.next() is None
        assert ours.state.ended is None
        ours.clock.now += 59


def test_nobody_waits_for_ever(placed: Make) -> None:
    ours = placed("a")
    first = ours.ask()
    ours.cluster.there = [Node(id="small", slots=1)]
    ours.report(first, make_measured())

    assert ours.next() is None
    assert ours.state.ended is None
    ours.clock.now += 61
    assert ours.next() is None
    ended = ours.state.ended
    assert ended is not None
    assert ended.reason == NoRoom(ranks=2, minutes=1.0, available=((1, 1),))
    assert [type(outcome) for outcome in ours.outcomes] == [Measured, Cancelled]
    later = Sweep(ours.spec, PlayedCluster(make_nodes("a")))  # the plan is still untried
    assert len(later.state.records) == 1
    assert later.ask().placement == Placement((("a", 2),))


def test_the_node_of_a_ray_that_is_gone_is_not_waited_for(placed: Make) -> None:
    """A Ray that the sweep has started has one node, in whose place no other will come."""
    ours = Sweep(placed("a").spec, PlayedCluster(make_nodes("a")), nodes_may_come=False)
    first = ours.ask()
    ours.cluster.there = []
    ours.report(first, DIED, "a")

    assert ours.next() is None

    ended = ours.state.ended
    assert ended is not None
    assert ended.reason == NoRoom(ranks=2, minutes=0.0)
    assert ended_by_machine(ended.reason)
    assert not [note for note in ours.notes if "waits" in note]
    assert {type(outcome) for outcome in ours.outcomes} == {Cancelled}


def test_a_validation_without_room_ends_the_sweep(placed: Make) -> None:
    budget = {"trials": 1, "minutes": 60}
    ours = placed("a", "b", validation={"enabled": True, "repeats": 0}, budget=budget)
    run = ours.ask()
    ours.cluster.there = []
    ours.report(run, make_measured())

    assert ours.next() is None
    assert ours.state.ended is None
    ours.clock.now += 61
    assert ours.next() is None
    ended = ours.state.ended
    assert ended is not None
    assert isinstance(ended.reason, NoRoom)


def test_a_validation_needs_room_for_itself_alone(placed: Make) -> None:
    budget = {"trials": 1, "minutes": 60}
    ours = placed(
        "a", "b", groups=2, requested=2, validation={"enabled": True, "repeats": 0}, budget=budget
    )
    first = ours.ask()
    assert ours.cluster.need == Shortfall(nodes=frozenset({"a", "b"}))
    ours.report(first, make_measured())

    assert ours.ask().request.validation
    assert ours.cluster.need == Shortfall(nodes=frozenset({"a"}))


def test_a_validation_whose_node_is_lost_is_run_again(placed: Make) -> None:
    budget = {"trials": 1, "minutes": 60}
    ours = placed("a", "b", validation={"enabled": True, "repeats": 0}, budget=budget)
    ours.report(ours.ask(), make_measured())
    validation = ours.ask()
    assert validation.request.validation
    ours.report(validation, DIED, "a")

    again = ours.ask()
    assert again.request.validation
    assert again.request.plan == validation.request.plan
    assert again.placement == Placement((("b", 2),))
