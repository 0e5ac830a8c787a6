"""Which nodes a sweep needs: those that must stay, and those that an autoscaler is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from orchestrator.core.placement import Node, Placement, on_kind, placed_groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Room for so many groups at the same time, each as large as the largest plan.

    Where plans tell kinds of nodes apart, `accelerator` is the kind of these groups'.
    """

    groups: int = 1
    ranks: int  # of a group
    tensor: int = 1  # of its ranks that have to be on one node
    share: bool = False  # whether groups may share nodes
    accelerator: str = ""


@dataclass(frozen=True, slots=True)
class Need:
    """Nodes that must stay, and room that is missed."""

    nodes: frozenset[str] = frozenset()  # ids
    bundles: tuple[int, ...] = ()  # ranks, those of each on one node; empty: nothing is missed
    accelerator: str = ""  # the kind of the nodes that are missed


def need_of(wanted: Wanted, nodes: Sequence[Node], held: Sequence[Placement] = ()) -> Need:
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
        return Need(nodes=kept, accelerator=wanted.accelerator)
    taken = Counter(node for group in held for node in group.node_of_rank)
    ours = Counter(node for group in there for node in group.node_of_rank)
    rest = [
        (ours[node.id] if wanted.share else node.slots) - taken[node.id]
        for node in nodes
        if node.id in kept
    ]
    return Need(
        nodes=kept,
        bundles=(*(ranks for ranks in rest if ranks > 0), *_more(wanted, missing, nodes)),
        accelerator=wanted.accelerator,
    )


@lru_cache(maxsize=16)  # it is asked for with each trial, and nodes seldom change
def _room(wanted: Wanted, nodes: tuple[Node, ...]) -> tuple[Placement, ...]:
    return placed_groups(wanted.ranks, wanted.tensor, nodes, wanted.groups, share=wanted.share)


def _more(wanted: Wanted, missing: int, nodes: Sequence[Node]) -> Iterator[int]:
    """Bundles of so many groups.

    Two that are to be on nodes of their own would else be brought one node with room for both:
    how large nodes are is known once there is one.
    """
    largest = max((node.slots for node in nodes), default=0)
    each = wanted.tensor if wanted.share else max(largest, wanted.tensor)
    for _ in range(missing):
        yield from [each] * -(-wanted.ranks // each)
