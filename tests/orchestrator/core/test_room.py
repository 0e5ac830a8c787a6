"""Lost nodes, lost queues and missing room: what a controller without a study decides."""

from typing import Any

import pytest

from orchestrator.core.instructions import End, Run
from orchestrator.core.notes import PlanBlamed
from orchestrator.core.reasons import MachineReason, Retry
from search_spaces.plan import Plan
from search_spaces.trial import Crashed, NodesLost, NoRoom
from tests.orchestrator.core.driven import (
    BASELINE,
    PAIRS,
    Driven,
    budget_of,
    driver,
    nodes,
    searching,
)

DIED = Crashed(cause="worker_died", rank=1, phase="forward", detail="connection lost")


def ended(instructions: tuple[Any, ...]) -> End:
    (end,) = (one for one in instructions if isinstance(one, End))
    return end


def running(driven: Driven) -> Plan:
    """Returns the plan of the only trial."""
    (trial,) = driven.state.sweep.running
    return trial.plan


def test_a_plan_that_nodes_do_not_survive_is_blamed() -> None:
    driven = Driven.by(driver(spec=budget_of(9), groups=1))
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


@pytest.mark.parametrize("nodes_may_come", [True, False])
def test_missing_room_ends_a_sweep_after_the_wait(nodes_may_come: bool) -> None:
    """A Ray that the sweep has started has one node, in whose place no other will come."""
    minutes = budget_of(9).cluster.wait_minutes
    driven = Driven.by(driver(spec=budget_of(9), groups=1, nodes_may_come=nodes_may_come))
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
    assert isinstance(reason, MachineReason)


def test_a_validation_without_room_ends_the_sweep() -> None:
    driven = searching()
    driven.report("group-1", 0)
    driven.show()
    assert not any(isinstance(one, Run) for one in driven.report("group-2", 1))

    instructions = driven.tick(60 * driven.state.sweep.spec.cluster.wait_minutes)

    assert isinstance(ended(instructions).reason, NoRoom)
    assert [record.plan for record in driven.state.sweep.records] == [BASELINE, PAIRS[0]]
