"""Capacity of a sweep: nodes to keep, and bundles to request from an autoscaler."""

from orchestrator.core.placement import CapacityRequest, Node, Placement, Shortfall, shortfall


def nodes(**slots: int) -> list[Node]:
    return [Node(id=name, slots=count) for name, count in slots.items()]


def test_on_an_empty_cluster_room_for_all_is_asked_for_whole_where_ranks_share_a_node() -> None:
    assert shortfall(CapacityRequest(groups=3, ranks=2), []) == Shortfall(bundles=(1,) * 6)
    assert shortfall(CapacityRequest(ranks=8, tensor=4), []) == Shortfall(bundles=(4, 4))


def test_where_there_is_room_nothing_is_asked_for_and_what_is_needed_stays() -> None:
    there = nodes(a=2, b=2, c=2)

    assert shortfall(CapacityRequest(groups=2, ranks=2), there) == Shortfall(frozenset("ab"))
    assert shortfall(CapacityRequest(groups=2, ranks=1, share=True), there) == Shortfall(
        frozenset("a")
    )


def test_groups_that_share_no_node_ask_for_whole_ones_once_their_size_is_known() -> None:
    """An autoscaler could otherwise bring one node with room for two groups of one rank."""
    wanted = CapacityRequest(groups=3, ranks=1)

    assert shortfall(wanted, nodes(a=4)) == Shortfall(frozenset("a"), (4, 4, 4))
    shared = CapacityRequest(groups=5, ranks=1, share=True)
    assert shortfall(shared, nodes(a=4)) == Shortfall(frozenset("a"), (4, 1))


def test_what_a_group_holds_is_asked_for_by_ray_train() -> None:
    wanted = CapacityRequest(groups=2, ranks=4)
    small = Placement((("a", 1),))

    assert shortfall(wanted, nodes(a=4), [small]) == Shortfall(frozenset("a"), (3, 4))
    whole = Placement((("a", 4),))
    assert shortfall(wanted, nodes(a=4), [whole]) == Shortfall(frozenset("a"), (4,))


def test_of_a_node_that_is_shared_only_what_groups_take_is_counted() -> None:
    """One group takes three of four ranks; the three of the other do not fit next to it."""
    wanted = CapacityRequest(groups=2, ranks=3, share=True)

    assert shortfall(wanted, [Node(id="a", slots=4)]) == Shortfall(frozenset({"a"}), (3, 1, 1, 1))
