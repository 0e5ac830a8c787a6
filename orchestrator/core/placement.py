"""On which nodes the ranks of a plan run: tensor ranks on one, groups apart from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from search_spaces.plan import Plan


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
class Assigned:
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
) -> Assigned | None:
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
            return Assigned(placement=there)
    for held in ([*running, *idle], running):
        if found := _placed(plan, _free(up, held, share=share)):
            gone = [there for there in idle if there not in held and there.nodes & found.nodes]
            return Assigned(placement=found, evicted=tuple(gone))
    return None


def of_one_kind(nodes: Sequence[Node], kind: str | None = None) -> tuple[Node, ...]:
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


def words(nodes: Sequence[Node]) -> str:
    """What there is, for people: how many nodes have room for how many ranks."""
    return ", ".join(_counts(nodes)) or "no node"


def _counts(nodes: Sequence[Node]) -> Iterator[str]:
    alike = Counter((node.slots, node.kind) for node in nodes)
    for (slots, kind), count in sorted(alike.items(), reverse=True):
        each = "1 rank" if slots == 1 else f"{slots} ranks"
        of = f" of {kind}" if len({node.kind for node in nodes}) > 1 else ""
        yield f"{count} node{'s' if count > 1 else ''}{of} with room for {each}"
