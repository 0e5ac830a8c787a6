"""Nodes of a Ray cluster: those that are up or unreachable, and requests for more."""

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, final

from orchestrator.cluster import ray_private
from orchestrator.core.placement import (
    CapacityRequest,
    Node,
    Shortfall,
    capacities,
    nodes_of_one_kind,
    placed_groups,
    shortfall,
)
from orchestrator.report.reasons import capacity_words
from search_spaces.errors import ClusterError
from search_spaces.hardware.device import RESOURCES
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import ClusterSpec

_EXPIRES_SECONDS = 180.0  # as for Ray Train's own requests
_REPEAT_SECONDS = 20.0
_ANSWER_SECONDS = 10.0
# One byte of a node's memory: a node is not idle, and stays up, while a part of it is in use.
_SLIVER = {"memory": 1.0}
ID_LABEL = "ray.io/node-id"  # Ray sets it on each node
_SLICE_LABEL, _SLICE_PLACE_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
_KIND_LABEL = "ray.io/accelerator-type"
_HEAD = "node:__internal_head__"  # every head node has 1.0 of it
# Actors next to the driver ask for a sliver of it instead of cores, which the workers need. Ray
# Tune does not accept an empty request.
HEAD_RESOURCE = {_HEAD: 0.001}
_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 3.0


@final
class Autoscaler:
    """This sweep's requests to Ray's autoscaler. Without an autoscaler they have no effect.

    Args:
        labels: Those that new nodes must have.
    """

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._requester_id = f"plimsoll-{uuid.uuid4().hex}"
        self._requested: Sequence[dict[str, float]] = []
        self._requested_at = 0.0
        self._placement_groups: dict[str, Any] = {}  # by node

    def ask_for(self, bundles: Sequence[dict[str, float]]) -> None:
        """Requests bundles of resources in addition to what Ray Train requests, each on one node.

        Replaces the earlier request, and renews it before it expires. No bundles cancel it.
        """
        now = time.monotonic()
        if bundles == self._requested and (
            not bundles or now < self._requested_at + _REPEAT_SECONDS
        ):
            return
        if self._send(bundles):
            self._requested, self._requested_at = bundles, now

    def keep(self, nodes: Collection[str]) -> None:
        """Keeps the nodes with these ids up while nothing runs on them, and no others."""
        from ray.util.placement_group import placement_group, remove_placement_group

        for node in set(self._placement_groups) - set(nodes):
            remove_placement_group(self._placement_groups.pop(node))
        new = [node for node in nodes if node not in self._placement_groups]
        for node in new:
            self._placement_groups[node] = placement_group(
                [_SLIVER], bundle_label_selector=[{ID_LABEL: node}]
            )
        for node in new:
            self._placement_groups[node].wait(_ANSWER_SECONDS)

    def close(self) -> None:
        """Cancels the request and lets all nodes go."""
        import ray

        self.ask_for([])
        if self._placement_groups:
            with contextlib.suppress(ray.exceptions.RayError):  # the cluster may have gone
                self.keep(())

    def _send(self, bundles: Sequence[dict[str, float]]) -> bool:
        """Returns False if the request failed; the next `ask_for` then repeats it."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            coordinator = ray_private.autoscaling_coordinator()
            answer = (
                coordinator.request_resources.remote(
                    requester_id=self._requester_id,
                    resources=bundles,
                    label_selectors=[self._labels] * len(bundles),
                    expire_after_s=_EXPIRES_SECONDS,
                )
                if bundles
                else coordinator.cancel_request.remote(requester_id=self._requester_id)
            )
            ray.get(answer, timeout=_ANSWER_SECONDS)
            return True
        return False


@final
class RayNodes:
    """The nodes of the cluster that this process is connected to."""

    def __init__(self, device: str, cluster: ClusterSpec, *, joined: bool) -> None:
        """Describes what a rank needs; requests nothing yet.

        Args:
            device: Type of the ranks' device: they take CPU cores, and one of `RESOURCES` each.
            cluster: CPU cores of each rank, and the kind of the nodes to use; without an
                accelerator, the one with room for the most ranks.
            joined: Whether the cluster existed before, so that its nodes may come and go.
        """
        self._device = device
        self._cpus_per_worker = cluster.cpus_per_worker
        self._kind = cluster.accelerator  # of the sweep's nodes; if open, set once a node is up
        labels = {_KIND_LABEL: self._kind} if self._kind else {}
        self._autoscaler = Autoscaler(labels) if joined else None
        self._labelled = device in RESOURCES or self._kind is not None

    @property
    def may_come(self) -> bool:
        """True if other nodes may join, as on a cluster that is not this sweep's own."""
        return self._autoscaler is not None

    def up(self) -> tuple[Node, ...]:
        """Returns the nodes that are up and have room for a rank, of the kind that is used."""
        nodes = nodes_of_one_kind(self.all_up(), self._kind)
        if nodes:
            self._kind = nodes[0].kind
        return nodes

    def all_up(self) -> tuple[Node, ...]:
        """Returns the nodes that are up, including kinds that the sweep does not use."""
        return tuple(
            Node(
                id=node["NodeID"],
                slots=slots,
                name=node["NodeName"],
                kind=node["Labels"].get(_KIND_LABEL, "") if self._labelled else "",
                address=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
                slice=node["Labels"].get(_SLICE_LABEL, ""),
            )
            for node in sorted(_nodes(), key=_place_in_slice)
            if node["Alive"] and (slots := self._slots(node["Resources"]))
        )

    def head_bytes(self) -> int:
        """Returns Ray's count of memory on the head node, where the runners of groups live."""
        resources = (node["Resources"] for node in _nodes() if node["Alive"])
        return int(sum(each.get("memory", 0) for each in resources if _HEAD in each))

    def request_capacity(self, need: Shortfall) -> None:
        """Keeps nodes up and requests the missing ones; replaces all earlier requests.

        A request expires: call this often.
        """
        if self._autoscaler is None:
            return
        self._autoscaler.keep(need.nodes)
        self._autoscaler.ask_for([self._bundle(ranks) for ranks in need.bundles])

    def close(self) -> None:
        """Cancels all requests, which would keep nodes up after the sweep."""
        if self._autoscaler is not None:
            self._autoscaler.close()

    def _bundle(self, ranks: int) -> dict[str, float]:
        return rank_resources(self._device, self._cpus_per_worker, ranks)

    def _slots(self, resources: dict[str, float]) -> int:
        cores = int(resources.get("CPU", 0)) // self._cpus_per_worker
        if self._device not in RESOURCES:
            return cores
        return min(int(resources.get(RESOURCES[self._device], 0)), cores)


def rank_resources(device: str, cpus: int, ranks: int = 1) -> dict[str, float]:
    """Returns Ray's resources of ranks with a device and so many CPU cores each."""
    own = {RESOURCES[device]: float(ranks)} if device in RESOURCES else {}
    return {"CPU": float(ranks * cpus)} | own


def await_room(nodes: RayNodes, spec: SweepSpec, say: Callable[[str], None]) -> None:
    """Waits until all worker groups find room, if the specification fixes their size.

    Waits for one group if the specification leaves their number open. `say` receives a line when
    the wait begins.

    Raises:
        ClusterError: If no group finds room within `cluster.wait_minutes`; says what room there is.
    """
    if (request := _request(spec)) is None:
        return
    minutes = f"{spec.cluster.wait_minutes:g} minutes"
    until = time.monotonic() + spec.cluster.wait_minutes * 60
    tensor, waits = min(spec.space.tensor or (1,)), False
    while not _has_room(request, up := nodes.up(), tensor):
        if time.monotonic() >= until:
            raise ClusterError(
                f"{_keys(request)}, but after {minutes} (cluster.wait_minutes) the cluster"
                f" has {_room(up)}: lower the values, or add nodes"
            )
        nodes.request_capacity(shortfall(request, up))
        if not waits:
            waits, words = True, _room_words(request, spec.cluster.accelerator)
            say(f"Waiting up to {minutes} for room for {words}. The cluster has {_room(up)}.")
        time.sleep(_POLL_SECONDS)
    # the nodes must not go before the first trial
    nodes.request_capacity(Shortfall(nodes=shortfall(request, nodes.up()).nodes))


def _room(up: Sequence[Node]) -> str:
    return capacity_words(capacities(up))


def _has_room(request: CapacityRequest, up: Sequence[Node], tensor: int) -> bool:
    groups = placed_groups(request.ranks, tensor, up, request.groups, share=request.share)
    return len(groups) == request.groups


def _request(spec: SweepSpec) -> CapacityRequest | None:
    """Returns what a sweep needs before it begins; None: any room will do."""
    cluster = spec.cluster
    if cluster.workers == "auto":
        return None
    fitting = [degree for degree in spec.space.tensor or () if degree <= cluster.workers]
    return CapacityRequest(
        groups=1 if cluster.groups == "auto" else cluster.groups,
        ranks=cluster.workers,
        tensor=max(fitting, default=1),
        share=cluster.share_nodes,
    )


def _keys(request: CapacityRequest) -> str:
    workers = f"cluster.workers is {request.ranks}"
    return workers if request.groups == 1 else f"{workers} and cluster.groups {request.groups}"


def _room_words(request: CapacityRequest, accelerator: str | None) -> str:
    ranks = "1 rank" if request.ranks == 1 else f"{request.ranks} ranks"
    where = f" on {accelerator}" if accelerator else ""
    if request.groups == 1:
        return f"{ranks}{where}"
    separate = "" if request.share else " on separate nodes"
    return f"{request.groups} groups of {ranks}{where}{separate}"


def unreachable_nodes(addresses: Collection[tuple[str, str]]) -> tuple[str, ...]:
    """Returns the ids of nodes that two attempts to connect, one after the other, do not reach.

    Ray itself declares a node dead 15 to 65 s after its last sign of life.

    Args:
        addresses: Id and address of each node.
    """
    silent = [(node, address) for node, address in addresses if not _accepts_connections(address)]
    if silent:
        time.sleep(_POLL_SECONDS)
    return tuple(node for node, address in silent if not _accepts_connections(address))


def _accepts_connections(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _place_in_slice(node: dict[str, Any]) -> int:
    return int(node["Labels"].get(_SLICE_PLACE_LABEL, 0))  # the torus is numbered in this order


def _nodes() -> list[dict[str, Any]]:
    import ray

    return ray.nodes()
