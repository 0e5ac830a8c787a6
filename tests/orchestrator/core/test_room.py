"""Lost nodes, lost queues and missing room: what a controller without a study decides."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.instructions import End, Open, Run
from orchestrator.core.notes import PlanBlamed, PlansLeftOut
from orchestrator.core.placement import Node
from orchestrator.core.reasons import NoPlanForNodes, Retry, ended_by_machine
from search_spaces.plan import Plan
from search_spaces.trial import Crashed, NodesLost, NoRoom, QueuesLost
from tests.orchestrator.core.driven import (
    BASELINE,
    KINDS,
    PAIRS,
    Driven,
    budget_of,
    driver,
    nodes,
    searching,
)
from tests.orchestrator.records import make_spec

DIED = Crashed(cause="worker_died", rank=1, phase="forward", detail="connection lost")
WAIT_SECONDS = 60.0
A100, H100 = (Node(id=kind.lower(), slots=2, kind=kind) for kind in KINDS)


def ended(instructions: tuple[Any, ...]) -> End:
    (end,) = (one for one in instructions if isinstance(one, End))
    return end


def running(driven: Driven) -> Plan:
    """Returns the plan of the only trial."""
    (trial,) = driven.state.sweep.running
    return trial.plan


def test_a_plan_that_nodes_do_not_survive_is_blamed() -> None:
    driven = Driven.by(driver(spec=budget_of(9), max_groups=1))
    driven.show(*nodes("a", "b", "c", "d"))
    driven.open()
    for number, name in enumerate("ab"):
        driven.report("group-1", number, DIED, lost_nodes=(name,), workers_ended=True)
        driven.open()
        assert running(driven) == BASELINE
        reason = driven.state.sweep.running[0].reason
        assert reason == Retry(trial=number, cause=NodesLost(nodes=(name,)))
    driven.report("group-1", 2, DIED, lost_nodes=("c",), workers_ended=True)

    assert [record.outcome for record in driven.state.sweep.records[2:]] == [DIED]
    notes = [noted.note for noted in driven.state.sweep.notes]
    assert PlanBlamed(trial=2, loss=NodesLost(nodes=("c",))) in notes


def test_no_plan_is_blamed_for_lost_queues() -> None:
    """They are lost twice during trials of a plan, whose group then dies once."""
    driven = Driven.by(driver(spec=budget_of(9), max_groups=1))
    driven.show(*nodes("a"))
    driven.open()
    for number, queues_lost in enumerate((True, True, False), start=1):
        (*_, opening) = driven.end(f"group-{number}", queues_lost=queues_lost)
        assert isinstance(opening, Open)
        assert opening.plan == BASELINE
        driven.open()
    driven.report("group-4", 3)

    *lost, _, measured = driven.state.sweep.records
    assert {record.outcome.cause for record in lost} == {QueuesLost()}  # type: ignore[union-attr]
    assert (measured.number, measured.plan) == (3, BASELINE)


@pytest.fixture
def on_kinds() -> Driven:
    """The baseline runs on A100, another plan on H100; trials wait for room for a minute."""
    spec = make_spec(
        cluster={
            **{"workers": 2, "memory_gib": 0.5, "accelerators": list(KINDS)},
            "wait_minutes": WAIT_SECONDS / 60,
        },
        budget={"trials": 99, "minutes": 600},
        space={"micro_batch": [1, 2, 4], "batching": ["padded"]},
    )
    driven = Driven.by(driver(spec=spec, untried=(("A100", 50), ("H100", 1))))
    driven.show(A100, H100)
    driven.open()
    candidates = driven.state.sweep.space.candidates
    driven.begin(next(plan for plan in candidates if plan.accelerator == "H100"))
    assert [trial.plan.accelerator for trial in driven.state.sweep.running] == list(KINDS)
    return driven


def test_a_kind_whose_nodes_do_not_come_is_left_out(on_kinds: Driven) -> None:
    """The sweep ends once only plans for such nodes are left."""
    on_kinds.show(H100)
    on_kinds.report("group-1", 0, DIED, lost_nodes=("a100",), workers_ended=True)
    on_kinds.open()  # what was lost is decided, and waits
    on_kinds.tick(WAIT_SECONDS - 1)
    assert not on_kinds.state.left_out
    on_kinds.tick(1)

    assert on_kinds.state.left_out == {"A100"}
    note = on_kinds.state.sweep.notes[-1].note
    assert isinstance(note, PlansLeftOut)
    assert (note.room.ranks, note.room.accelerator) == (2, "A100")
    assert ended(on_kinds.report("group-2", 1)).reason == NoPlanForNodes()


@pytest.mark.parametrize("nodes_may_come", [True, False])
def test_missing_room_ends_a_sweep_after_the_wait(nodes_may_come: bool) -> None:
    """A Ray that the sweep has started has one node, in whose place no other will come."""
    minutes = budget_of(9).cluster.wait_minutes
    driven = Driven.by(driver(spec=budget_of(9), max_groups=1, nodes_may_come=nodes_may_come))
    driven.show(*nodes("a"))
    driven.open()
    driven.show()
    driven.report("group-1", 0, DIED, lost_nodes=("a",), workers_ended=True)
    instructions = driven.open()
    if nodes_may_come:
        assert not driven.state.ended
        instructions = driven.tick(60 * minutes)

    reason = ended(instructions).reason
    assert reason == NoRoom(ranks=2, minutes=minutes if nodes_may_come else 0.0)
    assert ended_by_machine(reason)


def test_a_validation_without_room_ends_the_sweep() -> None:
    driven = searching()
    driven.report("group-1", 0)
    driven.show()
    assert not any(isinstance(one, Run) for one in driven.report("group-2", 1))

    instructions = driven.tick(60 * driven.state.sweep.spec.cluster.wait_minutes)

    assert isinstance(ended(instructions).reason, NoRoom)
    assert [record.plan for record in driven.state.sweep.records] == [BASELINE, PAIRS[0]]
