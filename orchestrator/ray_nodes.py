"""The nodes of a Ray cluster: which are up, which went, and asking for more."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection
from typing import Any, final

from orchestrator.core.placement import Node, of_one_kind, room_for_groups, words
from orchestrator.nodes import AbstractNodes
from search_spaces.errors import ClusterError
from search_spaces.spec.schema import SweepSpec

ID_LABEL = "ray.io/node-id"  # which each node has by itself
_KIND_LABEL = "ray.io/accelerator-type"
_KIND_RESOURCE = "accelerator_type:"
_POLL_SECONDS = 1.0
_KNOCK_SECONDS = 3.0


@final
class RayNodes(AbstractNodes):
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, device: str, cpus_per_worker: int) -> None:
        """Asks for nothing yet.

        Args:
            device: "cpu" or "cuda": which nodes have room for ranks, and how much.
            cpus_per_worker: CPU cores of each rank.
        """
        self._device = device
        self._cpus_per_worker = cpus_per_worker
        self._asked = False
        self._kind: str | None = None  # of GPUs that the sweep runs on, once there are any

    def up(self) -> tuple[Node, ...]:
        nodes = of_one_kind(self.all_up(), self._kind)
        if nodes:
            self._kind = nodes[0].kind
        return nodes

    def all_up(self) -> tuple[Node, ...]:
        """Those of other kinds too, which the sweep leaves alone."""
        return tuple(
            Node(
                id=node["NodeID"],
                slots=slots,
                name=node["NodeName"],
                kind=_kind(node) if self._device == "cuda" else "",
                door=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
            )
            for node in _nodes()
            if node["Alive"] and (slots := self._slots(node["Resources"]))
        )

    def ask_for(self, ranks: int) -> None:
        """Tells Ray's autoscaler, where there is one; nothing happens where there is none."""
        from ray.autoscaler.sdk import request_resources

        self._asked = True
        each = {"CPU": float(self._cpus_per_worker)}
        request_resources(bundles=[each | self._gpu for _ in range(ranks)])

    def close(self) -> None:
        """Takes back what was asked for: it would keep nodes up after the sweep."""
        if self._asked:
            from ray.autoscaler.sdk import request_resources

            request_resources(bundles=[])

    @property
    def _gpu(self) -> dict[str, float]:
        return {"GPU": 1.0} if self._device == "cuda" else {}

    def _slots(self, resources: dict[str, float]) -> int:
        cores = int(resources.get("CPU", 0)) // self._cpus_per_worker
        return min(int(resources.get("GPU", 0)), cores) if self._device == "cuda" else cores


def await_room(nodes: RayNodes, spec: SweepSpec, say: Callable[[str], None]) -> None:
    """Waits until one group finds room, if the specification says how large it is.

    Args:
        nodes: What there is.
        spec: Says how many ranks, and how long to wait for them.
        say: Is told that one waits.

    Raises:
        ClusterError: If it does not in `cluster.wait_minutes`; says what there is.
    """
    workers, until = spec.cluster.workers, time.monotonic() + spec.cluster.wait_minutes * 60
    if workers == "auto":
        return
    waits = False
    while not room_for_groups(workers, 1, up := nodes.up(), 1, share=True):
        if time.monotonic() >= until:
            raise ClusterError(
                f"cluster.workers is {workers}, and after {spec.cluster.wait_minutes:g} minutes"
                f" (cluster.wait_minutes) there is {words(up)}: lower it, or add nodes"
            )
        if not waits:
            waits = True
            nodes.ask_for(workers)
            minutes = f"up to {spec.cluster.wait_minutes:g} minutes"
            say(f"Waiting {minutes} for room for {workers} ranks: there is {words(up)}.")
        time.sleep(_POLL_SECONDS)


def gone_among(doors: Collection[tuple[str, str]]) -> tuple[str, ...]:
    """Ids of nodes that take no connection, twice in a row.

    Ray itself takes a node for lost 15 to 65 s after its last sign of life.

    Args:
        doors: Ids of nodes, and where each takes connections.
    """
    silent = [door for door in doors if not _answers(door[1])]
    if silent:
        time.sleep(_POLL_SECONDS)
    return tuple(node for node, at in silent if not _answers(at))


def _answers(door: str) -> bool:
    host, _, port = door.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_KNOCK_SECONDS).close()
    except OSError:
        return False
    return True


def _kind(node: dict[str, Any]) -> str:
    """Ray's name of the node's GPUs: a label, and in clusters without labels a resource."""
    label: str = node.get("Labels", {}).get(_KIND_LABEL, "")
    told = (name for name in sorted(node["Resources"]) if name.startswith(_KIND_RESOURCE))
    return label or next(told, "").removeprefix(_KIND_RESOURCE)


def _nodes() -> list[dict[str, Any]]:
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()
    return nodes
