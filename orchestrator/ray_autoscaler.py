"""What a sweep tells Ray's autoscaler: which nodes it needs, and which it does not want to lose.

Ray's public `request_resources` holds one request for the whole cluster. Ray Train and Ray Data
write it every 20 s, through an actor that adds up what each of them wants: the same one is told
here, or else the first group that starts would take back what the sweep asked for. It forgets
whoever does not ask again, such as a driver that was killed.

This is the one module that knows that actor.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

_EXPIRES_SECONDS = 180.0  # as Ray Train's own requests
_AGAIN_SECONDS = 20.0
_ANSWER_SECONDS = 10.0
# A byte of a node's memory. With a part of it taken, the node is not idle.
_SLIVER = {"memory": 1.0}


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
