"""What `plimsoll plan` is asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.footprint import Footprint
from search_spaces.forecast.planned import VariantKey
from search_spaces.hardware import Device
from search_spaces.rules import Surroundings
from search_spaces.spec.schema import SweepSpec

SURE_TO_FIT = 0.9  # probability from which on a plan is recommended
_HOST_SHARE = 0.9  # of a host's memory: the system and loader processes need some

TraceVariants = Callable[[tuple[VariantKey, ...]], Footprint]
"""Gives a footprint with at least these variants."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, a kind of device, and how many of them.

    `ranks` holds the counts that are compared, the first is the one that is answered in full.
    `limit_bytes` is what one rank may hold; `memory_sizes` are other limits to compare with.
    `price_per_hour` is that of one device.
    """

    spec: SweepSpec
    model: ModelFacts
    device: Device
    ranks: tuple[int, ...]
    limit_bytes: int
    memory_sizes: tuple[int, ...] = ()
    price_per_hour: float | None = None
    top: int = 10
    lacks: tuple[tuple[str, str], ...] = ()  # what the device cannot do: `ClusterFacts.lacks`

    @property
    def kind(self) -> str:
        """As torch calls it: "cpu" or "cuda"."""
        return "cpu" if self.device.link_kind == "memory" else "cuda"

    @property
    def line_bytes(self) -> float:
        """What the head-room leaves of the limit: the load line."""
        return self.limit_bytes * (1 - self.spec.objective.headroom)

    @property
    def host_limit_bytes(self) -> float:
        """What one rank may hold of the host's memory; a rank on a CPU lies in it as a whole."""
        return inf if self.kind == "cpu" else _HOST_SHARE * self.device.host_memory_bytes

    def limited_to(self, limit_bytes: int) -> Question:
        """The same question with another limit."""
        return replace(self, limit_bytes=limit_bytes)

    def around(self, ranks: int) -> Surroundings:
        """What rules look at on so many devices."""
        cluster = ClusterFacts(
            device=self.kind,
            slots=ranks,
            memory_limit_bytes=self.limit_bytes,
            node_slots=None if self.kind == "cpu" else self.device.node_devices,
            lacks=self.lacks,
        )
        return Surroundings(spec=_of_one_kind(self.spec), model=self.model, cluster=cluster)


def _of_one_kind(spec: SweepSpec) -> SweepSpec:
    """A specification for several kinds of nodes, as it is where there is but one."""
    cluster = spec.cluster.model_copy(update={"accelerators": {}})
    space = spec.space.model_copy(update={"accelerator": None})
    return spec.model_copy(update={"cluster": cluster, "space": space})
