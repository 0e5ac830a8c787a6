"""Placement of ranks on nodes: cases worked out by hand, and invariants of any cluster."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.placement import (
    Node,
    Placement,
    PlacementDecision,
    assign,
    capacities,
    nodes_of_one_kind,
    placed_groups,
)
from search_spaces.plan import Plan
from tests.orchestrator.records import make_plan


def plan_of(ranks: int, tensor: int = 1) -> Plan:
    return make_plan(data=ranks // tensor, tensor=tensor)


def nodes(**slots: int) -> list[Node]:
    return [Node(id=name, slots=count) for name, count in slots.items()]


def at(**ranks: int) -> Placement:
    return Placement(tuple(ranks.items()))


@pytest.mark.parametrize(
    ("plan", "there", "running", "expected"),
    [
        pytest.param(
            plan_of(2), nodes(a=8, b=2, c=4), [], at(b=2), id="the smallest that is enough"
        ),
        pytest.param(plan_of(2), nodes(a=8, b=2), [at(b=1)], at(a=2), id="not beside another"),
        pytest.param(plan_of(12), nodes(a=4, b=8, c=8), [], at(b=8, a=4), id="as few as possible"),
        pytest.param(
            plan_of(12, 4), nodes(a=6, b=6, c=6), [], at(a=4, b=4, c=4), id="whole tensors"
        ),
        pytest.param(plan_of(4, 4), nodes(a=3, b=3), [], None, id="a tensor on two nodes"),
        pytest.param(plan_of(4), nodes(a=4, b=4), [at(a=4), at(b=1)], None, id="all are taken"),
    ],
)
def test_where_ranks_go(
    plan: Plan, there: list[Node], running: list[Placement], expected: Placement | None
) -> None:
    found = assign(plan, there, running)

    assert found == (None if expected is None else PlacementDecision(placement=expected))


def test_ranks_stay_in_one_slice_of_tpus_if_they_fit() -> None:
    one, two = (
        [Node(id=f"{name}{host}", slots=4, slice=name) for host in range(hosts)]
        for name, hosts in (("one", 2), ("two", 4))
    )
    mixed = [two[0], one[0], two[1], one[1], *two[2:]]

    def found(ranks: int, *running: Placement) -> Placement | None:
        decision = assign(plan_of(ranks), mixed, running)
        return decision.placement if decision else None

    assert found(8) == at(one0=4, one1=4)  # the smallest slice with room
    assert found(8, at(one0=4)) == at(two0=4, two1=4)
    assert found(12) == at(two0=4, two1=4, two2=4)
    across = found(20)  # more than any slice
    assert across is not None
    assert across.world_size == 20
    groups = placed_groups(8, 1, mixed, 3, share=False)
    assert groups == (at(one0=4, one1=4), at(two0=4, two1=4), at(two2=4, two3=4))


def test_nodes_are_shared_where_they_may_be() -> None:
    there, running = nodes(a=4, b=2), [at(a=1)]

    assert assign(plan_of(3), there, running) is None
    assert assign(plan_of(3), there, running, share=True) == PlacementDecision(placement=at(a=3))
    assert assign(plan_of(4), there, [at(a=4)], share=True) is None


def test_workers_that_are_there_are_kept() -> None:
    """A waiting group is reused even if a smaller node has room."""
    there = nodes(a=8, b=2)

    assert assign(plan_of(2), there, [], [at(a=2)]) == PlacementDecision(placement=at(a=2))
    assert assign(plan_of(2), there, [], [at(gone=2)]) == PlacementDecision(placement=at(b=2))
    # tensor ranks of four on two nodes: these workers are of no use
    assert assign(plan_of(4, 4), nodes(a=4, b=2, c=2), [], [at(b=2, c=2)]) == PlacementDecision(
        placement=at(a=4)
    )


def test_groups_that_wait_go_if_there_is_no_other_room() -> None:
    there = nodes(a=4, b=4, c=4)

    # beside them if there is room; else instead of those that are in the way, and no others
    assert assign(plan_of(4), there, [], [at(a=2)]) == PlacementDecision(placement=at(b=4))
    assert assign(plan_of(8), there, [at(c=4)], [at(a=2)]) == PlacementDecision(
        placement=at(a=4, b=4), evicted=(at(a=2),)
    )
    assert assign(plan_of(4), there, [at(b=1), at(c=1)], [at(a=2)]) == PlacementDecision(
        placement=at(a=4), evicted=(at(a=2),)
    )


def test_what_is_compared_runs_on_gpus_of_one_kind() -> None:
    few = [Node(id=str(n), slots=8, kind="H100") for n in range(2)]
    many = [Node(id=f"l{n}", slots=4, kind="L4") for n in range(5)]

    assert nodes_of_one_kind([*few, *many]) == tuple(many)
    assert nodes_of_one_kind([*few, *many], "H100") == tuple(few)
    assert nodes_of_one_kind(few, "L4") == nodes_of_one_kind([]) == ()


def test_room_for_groups_is_counted() -> None:
    there = nodes(a=8, b=8, c=4)

    assert len(placed_groups(4, 1, there, 100, share=False)) == 3
    assert len(placed_groups(4, 1, there, 100, share=True)) == 5
    assert len(placed_groups(4, 1, there, 2, share=True)) == 2
    assert len(placed_groups(12, 1, there, 100, share=False)) == 1
    assert placed_groups(24, 8, there, 100, share=False) == ()
    assert capacities(there) == ((2, 8), (1, 4))


some_nodes = st.lists(st.integers(1, 9), max_size=6).map(
    lambda slots: [Node(id=str(number), slots=count) for number, count in enumerate(slots)]
)


@given(data=st.data(), there=some_nodes, share=st.booleans(), tensor=st.integers(1, 4))
def test_nobody_gets_more_than_there_is(
    data: Any, there: list[Node], share: bool, tensor: int
) -> None:
    """Each group is placed whole, tensor ranks share a node, and no node is overcommitted."""
    running: list[Placement] = []
    for _ in range(4):
        plan = plan_of(tensor * data.draw(st.integers(1, 5)), tensor)
        found = assign(plan, there, running, share=share)
        if found is None:
            continue
        assert found.placement.world_size == plan.world_size == len(found.placement.node_of_rank)
        assert all(ranks % tensor == 0 for _, ranks in found.placement.parts)
        assert len(found.placement.nodes) == len(found.placement.parts)
        running.append(found.placement)
    taken = Counter(node for group in running for node in group.node_of_rank)
    assert all(taken[node.id] <= node.slots for node in there)
    if not share:
        owners = Counter(node for group in running for node in group.nodes)
        assert not owners or max(owners.values()) == 1
