"""On which nodes the ranks of a plan run: tensor ranks on one, groups apart from each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from search_spaces.plan import Plan
from search_spaces.settings.render import Environment, render_environment


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine that is up, with room for so many ranks when nothing runs on it."""

    id: str
    slots: int
    name: str = ""  # for people
    kind: str = ""  # of its GPUs, as Ray calls it; empty where it has none
    door: str = ""  # host:port where it takes connections as long as it is there


@dataclass(frozen=True, slots=True)
class Placement:
    """Nodes in the order of ranks, each with how many of them it has."""

    parts: tuple[tuple[str, int], ...]

    @property
    def world_size(self) -> int:
        """How many ranks there are."""
        return sum(ranks for _, ranks in self.parts)

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes' ids."""
        return frozenset(node for node, _ in self.parts)

    @property
    def node_of_rank(self) -> tuple[str, ...]:
        """The node's id of each rank."""
        return tuple(node for node, ranks in self.parts for _ in range(ranks))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementDecision:
    """Where a group runs, and which groups that wait have to go for it."""

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
    """Where a plan's ranks go, None if there is no room beside those that run.

    A waiting group of the same size stays where it is. Else what is free is taken, and at last
    what groups hold that wait.

    Args:
        plan: Whose ranks.
        nodes: Those that are up.
        running: Of trials under way.
        idle: Of groups that wait for a trial, with their workers.
        share: Whether several groups may be on one node.
    """
    up = {node.id: node.slots for node in nodes}
    for there in idle:
        if _serves(there, plan, up):
            return PlacementDecision(placement=there)
    for held in ([*running, *idle], running):
        if found := _placed(plan, _free(up, held, share=share)):
            gone = [there for there in idle if there not in held and there.nodes & found.nodes]
            return PlacementDecision(placement=found, evicted=tuple(gone))
    return None


def one_kind_each(nodes: Sequence[Node], kind: str | None = None) -> tuple[Node, ...]:
    """Nodes of one kind: what is measured on different GPUs cannot be compared.

    Args:
        nodes: Those that are up.
        kind: Which one; None: the one that has room for most ranks.
    """
    room = Counter[str]()
    for node in nodes:
        room[node.kind] += node.slots
    wanted = max(room, key=room.__getitem__, default="") if kind is None else kind
    return tuple(node for node in nodes if node.kind == wanted)


def on_kind(nodes: Sequence[Node], accelerator: str) -> tuple[Node, ...]:
    """Nodes where a plan may run that names this kind; all of them if it names none."""
    return tuple(node for node in nodes if not accelerator or node.kind == accelerator)


def room_for_groups(
    ranks: int, tensor: int, nodes: Sequence[Node], most: int, *, share: bool
) -> int:
    """How many groups of so many ranks find room at the same time, at most so many."""
    return len(placed_groups(ranks, tensor, nodes, most, share=share))


def placed_groups(
    ranks: int, tensor: int, nodes: Sequence[Node], most: int, *, share: bool
) -> tuple[Placement, ...]:
    """Where groups of so many ranks find room at the same time, at most so many."""
    plan, running = _Shape(world_size=ranks, tensor=tensor), list[Placement]()
    up = {node.id: node.slots for node in nodes}
    while len(running) < most and (found := _placed(plan, _free(up, running, share=share))):
        running.append(found)
    return tuple(running)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shape:
    """What of a plan its placement depends on."""

    world_size: int
    tensor: int


def _serves(there: Placement, plan: Plan | _Shape, up: Mapping[str, int]) -> bool:
    """Whether workers that are there have the plan's size, and tensor ranks of it on one node."""
    same = there.world_size == plan.world_size
    return same and all(
        ranks % plan.tensor == 0 and up.get(node, 0) >= ranks for node, ranks in there.parts
    )


def _free(up: Mapping[str, int], held: Iterable[Placement], *, share: bool) -> dict[str, int]:
    """Ranks that nodes have room for; a node that somebody has is no one else's, or shared."""
    taken = Counter(node for there in held for node in there.node_of_rank)
    return {
        node: slots - taken[node] if share else 0 if taken[node] else slots
        for node, slots in up.items()
    }


def _placed(plan: Plan | _Shape, free: Mapping[str, int]) -> Placement | None:
    """On as few nodes as possible, and of those that are enough on the smallest.

    Ranks that stand next to each other share a node: tensor ranks always, data ranks as far as
    they can; stages of a pipeline, which talk least, are the first to lie apart.
    """
    wanted, parts = plan.world_size, list[tuple[str, int]]()
    room = {node: count - count % plan.tensor for node, count in free.items()}
    while wanted > 0:
        left = {node: count for node, count in room.items() if count > 0}
        if not left:
            return None
        enough = [node for node, count in left.items() if count >= wanted]
        node = min(enough, key=left.__getitem__) if enough else max(left, key=left.__getitem__)
        parts.append((node, min(wanted, room.pop(node))))
        wanted -= parts[-1][1]
    return Placement(tuple(parts))


def capacity_words(nodes: Sequence[Node]) -> str:
    """What there is, for people: how many nodes have room for how many ranks."""
    return ", ".join(_counts(nodes)) or "no node"


def _counts(nodes: Sequence[Node]) -> Iterator[str]:
    alike = Counter((node.slots, node.kind) for node in nodes)
    for (slots, kind), count in sorted(alike.items(), reverse=True):
        each = "1 rank" if slots == 1 else f"{slots} ranks"
        of = f" of {kind}" if len({node.kind for node in nodes}) > 1 else ""
        yield f"{count} node{'s' if count > 1 else ''}{of} with room for {each}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest:
    """Room for so many groups at the same time, each as large as the largest plan.

    Where plans tell kinds of nodes apart, `accelerator` is the kind of these groups'.
    """

    groups: int = 1
    ranks: int  # of a group
    tensor: int = 1  # of its ranks that have to be on one node
    share: bool = False  # whether groups may share nodes
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Nodes that must stay, and room that is missed."""

    nodes: frozenset[str] = frozenset()  # ids
    bundles: tuple[int, ...] = ()  # ranks, those of each on one node; empty: nothing is missed
    accelerator: str = ""  # the kind of the nodes that are missed


def shortfall(
    wanted: CapacityRequest, nodes: Sequence[Node], held: Sequence[Placement] = ()
) -> Shortfall:
    """What a sweep needs of nodes.

    An autoscaler is asked for totals, not for more. So what is asked for holds the nodes that
    stay too, without the ranks on them that Ray Train asks for by itself.

    Args:
        wanted: For whom there has to be room.
        nodes: Those that are up, of any kind.
        held: Of groups that have workers.
    """
    nodes = on_kind(nodes, wanted.accelerator)
    there = _room(wanted, nodes)
    kept = frozenset(node for group in there for node in group.nodes)
    missing = wanted.groups - len(there)
    if missing <= 0:
        return Shortfall(nodes=kept, accelerator=wanted.accelerator)
    taken = Counter(node for group in held for node in group.node_of_rank)
    ours = Counter(node for group in there for node in group.node_of_rank)
    rest = [
        (ours[node.id] if wanted.share else node.slots) - taken[node.id]
        for node in nodes
        if node.id in kept
    ]
    return Shortfall(
        nodes=kept,
        bundles=(*(ranks for ranks in rest if ranks > 0), *_more(wanted, missing, nodes)),
        accelerator=wanted.accelerator,
    )


@lru_cache(maxsize=16)  # it is asked for with each trial, and nodes seldom change
def _room(wanted: CapacityRequest, nodes: tuple[Node, ...]) -> tuple[Placement, ...]:
    return placed_groups(wanted.ranks, wanted.tensor, nodes, wanted.groups, share=wanted.share)


def _more(wanted: CapacityRequest, missing: int, nodes: Sequence[Node]) -> Iterator[int]:
    """Bundles of so many groups.

    Two that are to be on nodes of their own would else be brought one node with room for both:
    how large nodes are is known once there is one.
    """
    largest = max((node.slots for node in nodes), default=0)
    each = wanted.tensor if wanted.share else max(largest, wanted.tensor)
    for _ in range(missing):
        yield from [each] * -(-wanted.ranks // each)


class AbstractNodes(ABC):
    """The nodes of a cluster."""

    @abstractmethod
    def up(self) -> tuple[Node, ...]:
        """Those that are up and have room for a rank."""

    @abstractmethod
    def want(self, needs: Sequence[Shortfall]) -> None:
        """Keeps nodes, and asks whoever can bring some for what is missed.

        What was wanted before is no longer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """What is settled when a group of workers is started."""

    world_size: int
    environment: Environment
    placement: Placement | None = None  # None: wherever there is room

    @classmethod
    def of(cls, plan: Plan, device: str, placement: Placement | None = None) -> Self:
        """What the plan needs on a type of device."""
        return cls(
            world_size=plan.world_size,
            environment=render_environment(plan, device),
            placement=placement,
        )


def reason_to_change(needed: Processes, there: Processes, *, fresh: bool = False) -> str | None:
    """Why the workers that are there cannot run a plan, None if they can.

    They have run others, so that they are never fresh.
    """
    if needed.world_size != there.world_size:
        return f"the next plan needs {needed.world_size} ranks, there are {there.world_size}"
    if needed.environment != there.environment:
        return f"the next plan needs processes started with {_words(needed.environment)}"
    if needed.placement != there.placement:
        return "the next plan runs on other nodes"
    return "a validation runs in workers of its own" if fresh else None


def _words(environment: Environment) -> str:
    return " ".join(f"{name}={value}" for name, value in environment) or "no allocator settings"
