"""The kinds of nodes that a specification tells apart, as facts."""

from __future__ import annotations

from collections.abc import Callable

from search_spaces.facts import AcceleratorFacts, ClusterFacts
from search_spaces.spec.schema import SweepSpec

Room = Callable[[str], tuple[int, int | None]]  # ranks there is room for: on all nodes, on one


def told_apart(cluster: ClusterFacts, spec: SweepSpec, room: Room | None = None) -> ClusterFacts:
    """The cluster with each kind of nodes that the specification names.

    Args:
        cluster: What is known of all nodes together.
        spec: Names the kinds, and what one rank may hold on each.
        room: How many ranks each kind has room for; as many as all nodes together if None.
    """
    kinds = []
    for name in spec.cluster.accelerators:
        slots, node_slots = room(name) if room else (cluster.slots, cluster.node_slots)
        kinds.append(
            AcceleratorFacts(
                name=name,
                slots=slots,
                node_slots=node_slots,
                memory_limit_bytes=spec.on(name).memory_limit_bytes,
            )
        )
    return cluster.by_accelerator(tuple(kinds))
