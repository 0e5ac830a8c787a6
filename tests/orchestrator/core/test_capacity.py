"""Which nodes a sweep needs: what is kept, and what an autoscaler is asked for."""

from __future__ import annotations

from orchestrator.core.placement import Need, Node, Placement, Wanted, need_of


def nodes(**slots: int) -> list[Node]:
    return [Node(id=name, slots=count) for name, count in slots.items()]


def test_on_an_empty_cluster_room_for_every_group_is_asked_for() -> None:
    assert need_of(Wanted(groups=3, ranks=2), []) == Need(bundles=(1,) * 6)


def test_ranks_that_share_a_node_are_asked_for_together() -> None:
    assert need_of(Wanted(ranks=8, tensor=4), []) == Need(bundles=(4, 4))


def test_where_there_is_room_nothing_is_asked_for_and_what_is_needed_stays() -> None:
    there = nodes(a=2, b=2, c=2)

    assert need_of(Wanted(groups=2, ranks=2), there) == Need(frozenset("ab"))
    assert need_of(Wanted(groups=2, ranks=1, share=True), there) == Need(frozenset("a"))


def test_groups_that_share_no_node_ask_for_whole_ones_once_their_size_is_known() -> None:
    """Two groups of one rank would else be brought one node with room for both."""
    wanted = Wanted(groups=3, ranks=1)

    assert need_of(wanted, nodes(a=4)) == Need(frozenset("a"), (4, 4, 4))
    shared = Wanted(groups=5, ranks=1, share=True)
    assert need_of(shared, nodes(a=4)) == Need(frozenset("a"), (4, 1))


def test_a_group_larger_than_any_node_asks_for_as_many_as_it_takes() -> None:
    assert need_of(Wanted(ranks=5), nodes(a=2)) == Need(frozenset(), (2, 2, 2))


def test_what_a_group_holds_is_asked_for_by_ray_train() -> None:
    wanted = Wanted(groups=2, ranks=4)
    small = Placement((("a", 1),))

    assert need_of(wanted, nodes(a=4), [small]) == Need(frozenset("a"), (3, 4))
    whole = Placement((("a", 4),))
    assert need_of(wanted, nodes(a=4), [whole]) == Need(frozenset("a"), (4,))


def test_of_a_node_that_is_shared_only_what_groups_take_is_counted() -> None:
    """Three of four ranks are one group's; the other's three do not fit beside it."""
    wanted = Wanted(groups=2, ranks=3, share=True)

    assert need_of(wanted, [Node(id="a", slots=4)]) == Need(frozenset({"a"}), (3, 1, 1, 1))
