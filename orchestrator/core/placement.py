"""Placement of worker groups on nodes, and the capacity that a sweep requests.

Tensor ranks share a node; groups do not share nodes unless the specification allows it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Self

from orchestrator.core.reasons import (
    ForNextPlan,
    FreshWorkers,
    OtherEnvironment,
    OtherNodes,
    OtherRanks,
)
from search_spaces.plan import Plan
from search_spaces.settings.render import Environment, render_environment
from search_spaces.specification.schema import SweepSpec

if TYPE_CHECKING:
    from search_spaces.space import Space

MAX_GROUPS = 1000  # that start by default
# Memory on the head node: of a group's processes other than workers, and of Ray and the driver
# without any group (docs/how-far-to-believe-it.md)
GROUP_BYTES = 550 << 20
_HEAD_BYTES = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster that is up; idle, it has room for `slots` ranks."""

    id: str
    slots: int
    name: str = ""  # in messages
    kind: str = ""  # accelerator type of its GPUs, as Ray names it; empty without GPUs
    address: str = ""  # host:port that accepts connections while the node is up
    slice: str = ""  # name of the TPU slice that it belongs to; empty without TPUs


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes in the order of ranks, each with its number of ranks."""

    parts: tuple[tuple[str, int], ...]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return sum(ranks for _, ranks in self.parts)

    @property
    def nodes(self) -> frozenset[str]:
        """Ids of the nodes."""
        return frozenset(node for node, _ in self.parts)

    @property
    def node_of_rank(self) -> tuple[str, ...]:
        """Id of each rank's node."""
        return tuple(node for node, ranks in self.parts for _ in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    """Placement of a group, and the idle groups that must end to make room for it."""

    placement: Placement
    evicted: tuple[Placement, ...] = ()


def assign(
    plan: Plan,
    nodes: Sequence[Node],
    running: Sequence[Placement],
    idle: Sequence[Placement] = (),
    *,
    share: bool = False,
) -> PlacementDecision | None:
    """Returns a placement for a plan's ranks, None if there is no room next to running trials.

    An idle group of the same size is reused where it is. Otherwise the ranks go to free nodes, and
    as the last resort to nodes of idle groups, which are evicted. `running` are the placements of
    groups with a trial; several groups share a node if `share` is True.
    """
    slots = {node.id: node.slots for node in nodes}
    for group in idle:
        if _can_run(group, plan, slots):
            return PlacementDecision(placement=group)
    for occupied in ([*running, *idle], running):
        free_slots = _free_slots(slots, occupied, share=share)
        if placement := _place_in_slice(plan.world_size, plan.tensor, free_slots, nodes):
            evicted = [
                group for group in idle if group not in occupied and group.nodes & placement.nodes
            ]
            return PlacementDecision(placement=placement, evicted=tuple(evicted))
    return None


def nodes_of_one_kind(nodes: Sequence[Node], kind: str | None = None) -> tuple[Node, ...]:
    """Returns the nodes of one kind, since measurements on different GPUs are not comparable.

    Without a `kind` of accelerator it is the one with room for the most ranks.
    """
    slots = Counter[str]()
    for node in nodes:
        slots[node.kind] += node.slots
    selected = max(slots, key=slots.__getitem__, default="") if kind is None else kind
    return tuple(node for node in nodes if node.kind == selected)


def placed_groups(
    ranks: int, tensor: int, nodes: Sequence[Node], most: int, *, share: bool
) -> tuple[Placement, ...]:
    """Returns placements of groups of `ranks` ranks that fit at the same time, up to `most`."""
    groups, slots = list[Placement](), {node.id: node.slots for node in nodes}
    while len(groups) < most:
        free_slots = _free_slots(slots, groups, share=share)
        group = _place_in_slice(ranks, tensor, free_slots, nodes)
        if group is None:
            break
        groups.append(group)
    return tuple(groups)


def _can_run(group: Placement, plan: Plan, slots: Mapping[str, int]) -> bool:
    same_size = group.world_size == plan.world_size
    return same_size and all(
        ranks % plan.tensor == 0 and slots.get(node, 0) >= ranks for node, ranks in group.parts
    )


def _free_slots(
    slots: Mapping[str, int], occupied: Iterable[Placement], *, share: bool
) -> dict[str, int]:
    used = Counter[str]()
    for group in occupied:
        for node, ranks in group.parts:
            used[node] += ranks
    return {
        node: count - used[node] if share else 0 if used[node] else count
        for node, count in slots.items()
    }


def _place_in_slice(
    ranks: int, tensor: int, free_slots: Mapping[str, int], nodes: Iterable[Node]
) -> Placement | None:
    """Places ranks in the smallest slice with room for all of them, else on any nodes."""
    rooms: dict[str, dict[str, int]] = {}
    for node in nodes:
        rooms.setdefault(node.slice, {})[node.id] = free_slots[node.id]
    by_size = sorted(rooms.values(), key=lambda room: sum(room.values()))
    for room in (*by_size, free_slots):
        if placement := _place(ranks, tensor, room):
            return placement
    return None


def _place(ranks: int, tensor: int, free_slots: Mapping[str, int]) -> Placement | None:
    """Places ranks on as few nodes as possible, and the rest on the smallest node with room.

    Consecutive ranks share a node: tensor ranks always, data ranks as far as they fit. Pipeline
    stages, which communicate least, are the first to be split across nodes.
    """
    missing, parts = ranks, list[tuple[str, int]]()
    room = {node: count - count % tensor for node, count in free_slots.items()}
    while missing > 0:
        usable = {node: count for node, count in room.items() if count > 0}
        if not usable:
            return None
        enough = [node for node, count in usable.items() if count >= missing]
        node = (
            min(enough, key=usable.__getitem__) if enough else max(usable, key=usable.__getitem__)
        )
        parts.append((node, min(missing, room.pop(node))))
        missing -= parts[-1][1]
    return Placement(tuple(parts))


def capacities(nodes: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    """Counts nodes of the same size.

    Returns:
        For each size, largest first: the number of nodes, and the ranks that each holds.
    """
    nodes_of = Counter(node.slots for node in nodes)
    return tuple((count, slots) for slots, count in sorted(nodes_of.items(), reverse=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """A request for room for several groups at the same time, each as large as the largest plan."""

    groups: int = 1
    ranks: int  # of a group
    tensor: int = 1  # consecutive ranks that must share a node
    share: bool = False  # groups may share nodes


def groups_on_head(head_bytes: int) -> int:
    """Returns the number of groups that fit the head node's memory for Ray, at least one."""
    return min(max((head_bytes - _HEAD_BYTES) // GROUP_BYTES, 1), MAX_GROUPS)


def capacity_request(
    spec: SweepSpec, space: Space, nodes: Sequence[Node], most: int = MAX_GROUPS
) -> tuple[CapacityRequest, int]:
    """Returns the capacity to request, as far as all plans fit in it, and the number of groups.

    Groups that do not fit would each wait for the others, since they keep their workers. If
    `cluster.groups` is auto, there are no more than `most`.
    """
    groups, share = spec.cluster.groups, spec.cluster.share_nodes
    tensor = space.table.column("tensor")
    ranks = tensor * space.table.column("pipeline") * space.table.column("data")
    wanted = MAX_GROUPS if groups == "auto" else groups
    if groups == "auto" and spec.cluster.workers == "auto":
        wanted = 1
    shapes = set(zip(ranks.tolist(), tensor.tolist(), strict=True))
    fit = max(min(len(placed_groups(*shape, nodes, wanted, share=share)) for shape in shapes), 1)
    request = CapacityRequest(
        groups=fit, ranks=int(ranks.max()), tensor=int(tensor.max()), share=share
    )
    return request, min(fit, most) if groups == "auto" else groups


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Nodes that must stay up, and the room that is missing."""

    nodes: frozenset[str] = frozenset()  # ids of the nodes to keep
    bundles: tuple[int, ...] = ()  # missing ranks, those of a bundle on one node


def shortfall(
    wanted: CapacityRequest, nodes: Sequence[Node], held: Sequence[Placement] = ()
) -> Shortfall:
    """Returns the nodes that a sweep needs, and the room that it lacks.

    An autoscaler takes the total demand, not the increase. So the bundles include the nodes to
    keep, without the ranks on them that Ray Train requests itself: those of the groups that are
    `held`, since they have workers.
    """
    groups = _groups_that_fit(wanted, tuple(nodes))
    needed = frozenset(node for group in groups for node in group.nodes)
    missing = wanted.groups - len(groups)
    if missing <= 0:
        return Shortfall(nodes=needed)
    requested = Counter(node for group in held for node in group.node_of_rank)
    planned = Counter(node for group in groups for node in group.node_of_rank)
    unrequested = [
        (planned[node.id] if wanted.share else node.slots) - requested[node.id]
        for node in nodes
        if node.id in needed
    ]
    bundles = (ranks for ranks in unrequested if ranks > 0)
    return Shortfall(nodes=needed, bundles=(*bundles, *_missing_bundles(wanted, missing, nodes)))


@lru_cache(maxsize=16)  # called for each trial, and nodes seldom change
def _groups_that_fit(request: CapacityRequest, nodes: tuple[Node, ...]) -> tuple[Placement, ...]:
    return placed_groups(request.ranks, request.tensor, nodes, request.groups, share=request.share)


def _missing_bundles(
    request: CapacityRequest, missing: int, nodes: Sequence[Node]
) -> Iterator[int]:
    # A bundle fills a whole node unless groups share nodes: an autoscaler could otherwise bring one
    # node with room for two groups. The size of a node is unknown until one is up.
    largest = max((node.slots for node in nodes), default=0)
    ranks = request.tensor if request.share else max(largest, request.tensor)
    for _ in range(missing):
        yield from [ranks] * -(-request.ranks // ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """Properties of a worker group that are fixed when its processes start."""

    world_size: int
    environment: Environment
    placement: Placement | None = None  # None: any nodes with room

    @classmethod
    def of(cls, plan: Plan, device: str, placement: Placement | None = None) -> Self:
        """Returns what a plan needs on a type of device."""
        return cls(
            world_size=plan.world_size,
            environment=render_environment(plan, device),
            placement=placement,
        )


def reason_to_replace(
    needed: Processes, present: Processes, *, fresh: bool = False
) -> ForNextPlan | None:
    """Returns the reason why a running group cannot run a plan, None if it can.

    A plan may need `fresh` workers, which have run nothing before.
    """
    if needed.world_size != present.world_size:
        return OtherRanks(needed=needed.world_size, present=present.world_size)
    if needed.environment != present.environment:
        return OtherEnvironment(environment=needed.environment)
    if needed.placement != present.placement:
        return OtherNodes()
    return FreshWorkers() if fresh else None
