"""Number of trials that run at the same time, from the specification and the nodes' capacity."""

from pathlib import PurePath
from typing import Any

import pytest

from orchestrator.core.notes import HeadFull, NodesUnused, Note, StudyRemoved, start_notes
from orchestrator.core.placement import (
    MAX_GROUPS,
    CapacityRequest,
    Node,
    capacity_request,
    groups_on_head,
)
from orchestrator.report.reasons import groups_fault
from tests.orchestrator.records import make_space, make_spec

NODES = [Node(id=str(number), slots=2) for number in range(3)]


def wanted(nodes: list[Node], **cluster: Any) -> tuple[CapacityRequest, int]:
    spec = make_spec(cluster={"workers": 2, **cluster})
    return capacity_request(spec, make_space(spec), nodes)


def test_by_default_as_many_as_have_nodes_to_themselves() -> None:
    assert wanted(NODES) == (CapacityRequest(groups=3, ranks=2), 3)
    assert wanted(NODES, groups=2) == (CapacityRequest(groups=2, ranks=2), 2)
    assert wanted(NODES, workers="auto") == (CapacityRequest(groups=1, ranks=2), 1)


def test_the_head_has_memory_for_so_many() -> None:
    """Each group takes 550 MiB, in addition to 2 GiB for Ray and the driver."""
    assert [groups_on_head(gib << 30) for gib in (0, 2, 4, 8, 112, 10_000)] == [
        *(1, 1, 3, 11, 204),
        MAX_GROUPS,
    ]
    spec = make_spec(cluster={"workers": 2})
    asked = make_spec(cluster={"workers": 2, "groups": 3})

    assert capacity_request(spec, make_space(spec), NODES, 2)[1] == 2
    assert capacity_request(asked, make_space(asked), NODES, 2)[1] == 3


def test_on_a_node_that_is_shared_there_is_room_for_more() -> None:
    large = [Node(id="a", slots=5)]

    assert wanted(large, share_nodes=True)[1] == 2
    assert wanted(large)[1] == 1


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"groups": 2000}, "plans take up to 2 ranks; available: 3 nodes with room for 2 ranks"),
        ({"groups": 4}, "at most 3 groups fit at the same time without sharing nodes"),
        ({"groups": 4, "share_nodes": True}, "at most 3 groups fit at the same time"),
    ],
)
def test_more_than_there_is_room_for_are_refused(cluster: dict[str, Any], words: str) -> None:
    request, groups = wanted(NODES, **cluster)
    fault = groups_fault(request, groups, NODES)

    assert groups > request.groups
    assert fault.path == "cluster.groups"
    assert words in fault.advice


@pytest.mark.parametrize(
    ("folder", "room", "kinds", "expected"),
    [
        (PurePath("/data/runs"), 2, "", []),
        (None, 1, "", [HeadFull(groups=2, room=1)]),
        (
            PurePath("/ray/runtime_resources/7"),
            2,
            "",
            [StudyRemoved(folder="/ray/runtime_resources/7")],
        ),
        (None, 2, "BAB", [NodesUnused(kinds=("A", "B", "B"))]),
    ],
)
def test_what_a_sweep_says_before_its_first_trial(
    folder: PurePath | None, room: int, kinds: str, expected: list[Note]
) -> None:
    others = {Node(id=f"{kind}{rank}", slots=1, kind=kind) for rank, kind in enumerate(kinds)}

    notes = list(start_notes(folder, 2, room, set(NODES), {*NODES, *others}))

    assert notes == expected
