"""The nodes of a Ray cluster: which are up, which went, and waiting for more."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

from orchestrator.core.placement import (
    AbstractNodes,
    CapacityRequest,
    Node,
    Shortfall,
    capacity_words,
    on_kind,
    one_kind_each,
    room_for_groups,
    shortfall,
)
from search_spaces.errors import ClusterError
from search_spaces.spec.schema import SweepSpec

_EXPIRES_SECONDS = 180.0  # as Ray Train's own requests
_AGAIN_SECONDS = 20.0
_ANSWER_SECONDS = 10.0
# A byte of a node's memory. With a part of it taken, the node is not idle.
_SLIVER = {"memory": 1.0}
ID_LABEL = "ray.io/node-id"  # which each node has by itself
_KIND_LABEL = "ray.io/accelerator-type"
_KIND_RESOURCE = "accelerator_type:"
_HEAD = "node:__internal_head__"  # of which every head node has one
# What runs beside the driver asks for a sliver of it, not for cores that workers need; Tune refuses
# to ask for nothing at all.
HEAD_RESOURCE = {_HEAD: 0.001}
_POLL_SECONDS = 1.0
_KNOCK_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """Resources of one node, and the labels that it must have."""

    resources: tuple[tuple[str, float], ...]
    labels: tuple[tuple[str, str], ...] = ()


@final
class Autoscaler:
    """Ray's, as this sweep uses it; where there is none, nothing comes of it."""

    def __init__(self) -> None:
        """Asks for nothing yet."""
        self._name = f"plimsoll-{uuid.uuid4().hex}"
        self._asked: tuple[Bundle, ...] = ()
        self._asked_at = 0.0
        self._kept: dict[str, Any] = {}  # placement groups, by node

    def ask_for(self, bundles: Sequence[Bundle]) -> None:
        """Wants room for bundles, beside what Ray Train wants; none takes it back."""
        wanted, now = tuple(bundles), time.monotonic()
        if wanted == self._asked and (not wanted or now < self._asked_at + _AGAIN_SECONDS):
            return
        if self._tell(wanted):
            self._asked, self._asked_at = wanted, now

    def keep(self, nodes: Collection[str], label: str) -> None:
        """Holds these nodes, and no others, so that they do not go while nothing runs on them.

        Args:
            nodes: Values of the label.
            label: Which each node has to itself.
        """
        from ray.util.placement_group import placement_group, remove_placement_group

        for node in set(self._kept) - set(nodes):
            remove_placement_group(self._kept.pop(node))
        new = [node for node in nodes if node not in self._kept]
        for node in new:
            self._kept[node] = placement_group([_SLIVER], bundle_label_selector=[{label: node}])
        for node in new:
            self._kept[node].wait(_ANSWER_SECONDS)

    def close(self) -> None:
        """Takes back what was asked for, and lets all nodes go."""
        import ray

        self.ask_for(())
        if self._kept:
            with contextlib.suppress(ray.exceptions.RayError):  # the cluster may have gone
                self.keep((), "")

    def _tell(self, bundles: Sequence[Bundle]) -> bool:
        """Whether it was told; what went wrong is tried again with the next question."""
        import ray
        from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as known

        with contextlib.suppress(ray.exceptions.RayError):
            actor = known.get_or_create_autoscaling_coordinator()
            told = (
                actor.request_resources.remote(
                    requester_id=self._name,
                    resources=[dict(bundle.resources) for bundle in bundles],
                    label_selectors=[dict(bundle.labels) for bundle in bundles],
                    expire_after_s=_EXPIRES_SECONDS,
                )
                if bundles
                else actor.cancel_request.remote(requester_id=self._name)
            )
            ray.get(told, timeout=_ANSWER_SECONDS)
            return True
        return False


@final
class RayNodes(AbstractNodes):
    """The nodes of the cluster that this process is connected to."""

    def __init__(
        self, device: str, cpus_per_worker: int, accelerators: Iterable[str] = (), *, joined: bool
    ) -> None:
        """Asks for nothing yet.

        Args:
            device: "cpu" or "cuda": which nodes have room for ranks, and how much.
            cpus_per_worker: CPU cores of each rank.
            accelerators: Kinds of nodes that plans tell apart; nothing: one kind alone is used.
            joined: Whether it is somebody's cluster, whose nodes may come and go.
        """
        self._device = device
        self._cpus_per_worker = cpus_per_worker
        self._accelerators = frozenset(accelerators)
        self._autoscaler = Autoscaler() if joined else None
        self._kind: str | None = None  # of GPUs that the sweep runs on, once there are any

    def up(self) -> tuple[Node, ...]:
        if self._accelerators:
            return tuple(node for node in self.all_up() if node.kind in self._accelerators)
        nodes = one_kind_each(self.all_up(), self._kind)
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
                kind=_kind(node) if self._device == "cuda" or self._accelerators else "",
                door=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}",
            )
            for node in _nodes()
            if node["Alive"] and (slots := self._slots(node["Resources"]))
        )

    def head_bytes(self) -> int:
        """Memory that Ray counts on the node where groups' own processes run, not their workers."""
        heads = (node["Resources"] for node in _nodes() if node["Alive"])
        return int(sum(there.get("memory", 0) for there in heads if _HEAD in there))

    def want(self, needs: Sequence[Shortfall]) -> None:
        if self._autoscaler is None:
            return
        self._autoscaler.keep({node for need in needs for node in need.nodes}, ID_LABEL)
        self._autoscaler.ask_for(
            [self._bundle(ranks, need.accelerator) for need in needs for ranks in need.bundles]
        )

    def close(self) -> None:
        """Takes back what was wanted: it would keep nodes up after the sweep."""
        if self._autoscaler is not None:
            self._autoscaler.close()

    def _bundle(self, ranks: int, accelerator: str) -> Bundle:
        cores = ("CPU", float(ranks * self._cpus_per_worker))
        gpus = (("GPU", float(ranks)),) if self._device == "cuda" else ()
        labels = ((_KIND_LABEL, accelerator),) if accelerator else ()
        return Bundle((cores, *gpus), labels)

    def _slots(self, resources: dict[str, float]) -> int:
        cores = int(resources.get("CPU", 0)) // self._cpus_per_worker
        return min(int(resources.get("GPU", 0)), cores) if self._device == "cuda" else cores


def await_room(nodes: RayNodes, spec: SweepSpec, say: Callable[[str], None]) -> None:
    """Waits until the groups find room, if the specification says how large they are.

    Where it leaves open how many, one is waited for; where it tells kinds of nodes apart, one on
    each, and those that do not come are left out.

    Args:
        nodes: What there is.
        spec: Says how many ranks, and how long to wait for them.
        say: Is told that one waits.

    Raises:
        ClusterError: If they do not in `cluster.wait_minutes`; says what there is.
    """
    minutes = f"{spec.cluster.wait_minutes:g} minutes"
    until = time.monotonic() + spec.cluster.wait_minutes * 60
    wanted, waits = _wanted(spec), False
    least = min(spec.space.tensor or (1,))
    while missed := [one for one in wanted if not _has_room(one, up := nodes.up(), least)]:
        needs = [shortfall(one, up) for one in wanted]
        if time.monotonic() >= until:
            if len(missed) == len(wanted):
                raise ClusterError(
                    f"{_keys(missed[0])}, and after {minutes} (cluster.wait_minutes) there is"
                    f" {capacity_words(up)}: lower it, or add nodes"
                )
            kinds = ", ".join(one.accelerator for one in missed)
            say(f"After {minutes} there is {capacity_words(up)}: plans for {kinds} are left out.")
            break
        nodes.want(needs)
        if not waits:
            waits = True
            room = " and ".join(map(_room_words, missed))
            say(f"Waiting up to {minutes} for room for {room}: there is {capacity_words(up)}.")
        time.sleep(_POLL_SECONDS)
    # they must not go before the first trial
    nodes.want([Shortfall(nodes=shortfall(one, nodes.up()).nodes) for one in wanted])


def _has_room(wanted: CapacityRequest, up: Sequence[Node], tensor: int) -> bool:
    """Whether all groups find room, if of their ranks so many have to be on one node."""
    here = on_kind(up, wanted.accelerator)
    fit = room_for_groups(wanted.ranks, tensor, here, wanted.groups, share=wanted.share)
    return fit == wanted.groups


def _wanted(spec: SweepSpec) -> tuple[CapacityRequest, ...]:
    """What has to be there before a sweep begins, on each kind of nodes; empty: what there is."""
    asked, kinds = spec.cluster, spec.space.accelerator or tuple(spec.cluster.accelerators)
    if asked.workers == "auto":
        return ()
    fitting = [degree for degree in spec.space.tensor or () if degree <= asked.workers]
    one = CapacityRequest(
        groups=1 if asked.groups == "auto" or kinds else asked.groups,
        ranks=asked.workers,
        tensor=max(fitting, default=1),
        share=asked.share_nodes,
    )
    return tuple(replace(one, accelerator=kind) for kind in kinds or ("",))


def _keys(wanted: CapacityRequest) -> str:
    workers = f"cluster.workers is {wanted.ranks}"
    return workers if wanted.groups == 1 else f"{workers} and cluster.groups {wanted.groups}"


def _room_words(wanted: CapacityRequest) -> str:
    ranks = "1 rank" if wanted.ranks == 1 else f"{wanted.ranks} ranks"
    if wanted.accelerator:
        return f"{ranks} on {wanted.accelerator}"
    if wanted.groups == 1:
        return ranks
    own = "" if wanted.share else " on nodes of their own"
    return f"{wanted.groups} groups of {ranks}{own}"


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
