"""Number of trials that run at the same time, from the specification and the nodes' capacity."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.core.placement import CapacityRequest, Node
from orchestrator.sweep import MAX_GROUPS, capacity_requests, groups_on_head
from search_spaces.errors import SpecError
from tests.orchestrator.records import make_space, make_spec

NODES = [Node(id=str(number), slots=2) for number in range(3)]


def wanted(nodes: list[Node], **cluster: Any) -> tuple[tuple[CapacityRequest, ...], int]:
    spec = make_spec(cluster={"workers": 2, **cluster})
    return capacity_requests(spec, make_space(spec), nodes)


def test_by_default_as_many_as_have_nodes_to_themselves() -> None:
    assert wanted(NODES) == ((CapacityRequest(groups=3, ranks=2),), 3)
    assert wanted(NODES, groups=2) == ((CapacityRequest(groups=2, ranks=2),), 2)
    assert wanted(NODES, workers="auto") == ((CapacityRequest(groups=1, ranks=2),), 1)


def test_the_head_has_memory_for_so_many() -> None:
    """Each group takes 550 MiB, in addition to 2 GiB for Ray and the driver."""
    assert [groups_on_head(gib << 30) for gib in (0, 2, 4, 8, 112, 10_000)] == [
        *(1, 1, 3, 11, 204),
        MAX_GROUPS,
    ]
    spec = make_spec(cluster={"workers": 2})
    asked = make_spec(cluster={"workers": 2, "groups": 3})

    assert capacity_requests(spec, make_space(spec), NODES, 2)[1] == 2
    assert capacity_requests(asked, make_space(asked), NODES, 2)[1] == 3


def test_each_kind_of_nodes_has_its_groups() -> None:
    there = [Node(id="a", slots=2, kind="A100"), Node(id="b", slots=4, kind="A100")]
    there.append(Node(id="h", slots=2, kind="H100"))
    kinds = {"accelerators": ["A100", "H100"]}
    each = (
        CapacityRequest(groups=2, ranks=2, accelerator="A100"),
        CapacityRequest(groups=1, ranks=2, accelerator="H100"),
    )

    assert wanted(there, **kinds) == (each, 3)
    auto = wanted(there, workers="auto", **kinds)
    assert ([one.groups for one in auto[0]], auto[1]) == ([1, 1], 2)


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"groups": 2000}, "plans take up to 2 ranks; available: 3 nodes with room for 2 ranks"),
        ({"groups": 4}, "at most 3 groups fit at the same time without sharing nodes"),
        ({"groups": 4, "share_nodes": True}, "at most 3 groups fit at the same time"),
    ],
)
def test_more_than_there_is_room_for_are_refused(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(SpecError) as refused:
        wanted(NODES, **cluster)

    (fault,) = refused.value.faults
    assert fault.path == "cluster.groups"
    assert words in fault.advice
