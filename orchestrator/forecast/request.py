"""Planning request: the model, device and counts that `plimsoll plan` is called with."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.core.objective import Objective
from orchestrator.host import host_memory_bytes, system_facts
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.host_memory import HOST_SHARE
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import UserError
from search_spaces.facts import (
    ClusterFacts,
    DataProfile,
    ModelFacts,
    Understanding,
    planned_cluster,
)
from search_spaces.hardware.catalogue import find_device
from search_spaces.hardware.device import Device
from search_spaces.hardware.names import DeviceError
from search_spaces.hardware.properties import find_or_estimate_device
from search_spaces.rules.base import RuleContext
from search_spaces.rules.compute import kernel_refusals
from search_spaces.space import Space, build_space
from search_spaces.specification.schema import SweepSpec
from workers.prepare import prepare_driver

RECOMMENDED_FIT_PROBABILITY = 0.75  # at least, by published runs: docs/how-far-to-believe-it.md

TraceVariants = Callable[[tuple[VariantKey, ...]], Footprint]
"""Returns a footprint with at least these variants."""
CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRequest:
    """A model, a kind of device, and how many of them.

    `ranks` holds the counts to compare; the first one gets the full report. `limit_bytes` is the
    memory limit of one rank, `price_per_hour` the price of one device.
    """

    spec: SweepSpec
    model: ModelFacts
    device: Device
    ranks: tuple[int, ...]
    limit_bytes: int
    price_per_hour: float | None = None
    top: int = 10
    data: DataProfile | None = None  # None if the model makes its own batches
    lacks: tuple[tuple[str, str], ...] = ()  # missing features of the device: `ClusterFacts.lacks`

    @property
    def kind(self) -> str:
        """Device type in torch: "cpu", "cuda" or "tpu"."""
        return self.device.kind

    @property
    def line_bytes(self) -> float:
        """Memory that a plan may take, in bytes: see `Objective.usable_bytes`."""
        return Objective.of(self.spec).usable_bytes(self.limit_bytes)

    def rule_context(self, ranks: int) -> RuleContext:
        """Returns the context of rules on this number of devices."""
        cluster = ClusterFacts(
            device=self.kind,
            slots=ranks,
            memory_limit_bytes=self.limit_bytes,
            node_slots=None if self.kind == "cpu" else self.device.node_devices,
            lacks=self.lacks,
        )
        return RuleContext(spec=self.spec, model=self.model, cluster=cluster)


def planning_request(
    spec: SweepSpec,
    model: ModelFacts,
    device: Device,
    *,
    ranks: tuple[int, ...] = (),
    price_per_hour: float | None = None,
    top: int = 10,
    data: DataProfile | None = None,
) -> PlanningRequest:
    """Makes a request from a specification and the options of the command line.

    Args:
        spec: The specification.
        model: Facts about its model.
        device: The device; see `device_of`.
        ranks: Device counts; those of the specification or of a node if empty.
        price_per_hour: Price of one device; `cluster.price_per_gpu_hour` or the device's if None.
        top: Number of best plans to report.
        data: Profile of its data; None if the model makes its own batches.
    """
    counts = ranks or (default_ranks(spec, device),)
    own_bytes = device_bytes(device, counts[0])
    prices = (price_per_hour, spec.cluster.price_per_gpu_hour, device.price_per_hour)
    return PlanningRequest(
        spec=spec,
        model=model,
        device=device,
        ranks=counts,
        limit_bytes=min(spec.memory_limit_bytes or own_bytes, own_bytes),
        price_per_hour=next((price for price in prices if price is not None), None),
        top=top,
        data=data,
        lacks=_missing_features(device),
    )


def understand(spec: SweepSpec) -> tuple[Understanding, Space]:
    """Returns how a job is understood, and its plans; raises UserError for model, data or rules."""
    model, data = prepare_driver(spec)
    ranks = 1  # if the number is unknown
    if spec.cluster.workers != "auto" or spec.cluster.device == CPU:
        ranks = spec.cluster.ranks_of(max((os.cpu_count() or 1) // spec.cluster.cpus_per_worker, 1))
    context = RuleContext(spec=spec, model=model, cluster=planned_cluster(spec, ranks))
    understanding = Understanding(data=data, model=model, cluster=context.cluster, ranks=ranks)
    return understanding, build_space(context, ranks)


def device_of(spec: SweepSpec, *, name: str | None, devices_per_node: int | None) -> Device:
    """Returns the device to plan for.

    The command line takes precedence over `cluster.gpu`, and that over the local GPU, which is
    estimated from its properties if it is unknown.

    Args:
        spec: The specification.
        name: A device name from the command line.
        devices_per_node: Devices per node; the specification's or the device's if None.

    Raises:
        DeviceError: If the named device is unknown, or the local one and cannot be estimated.
        SpecError: If a device file of the user has faults.
        UserError: If no device is named and this machine has none.
    """
    known = name or spec.cluster.gpu
    device = find_device(known) if known else _local_device(spec)
    return device.in_node(devices_per_node or spec.cluster.gpus_per_node, spec.host_memory_bytes)


def default_ranks(spec: SweepSpec, device: Device) -> int:
    """Returns the ranks of the specification or, if it leaves them open, of a node."""
    if spec.cluster.workers != "auto":
        return spec.cluster.workers
    if device.link_kind == "memory":
        return max((os.cpu_count() or 1) // spec.cluster.cpus_per_worker, 1)
    return min(device.node_devices, 8)


def _local_device(spec: SweepSpec) -> Device:
    if spec.cluster.device == CPU:
        return find_device(CPU)
    gpus = system_facts()["gpus"]
    if gpus:
        return _local_gpu(str(gpus[0]["name"])).in_node(None, host_memory_bytes())
    if spec.cluster.device == "auto":
        return find_device(CPU)
    raise UserError(
        "this machine has no GPU to plan for: name one with --gpu or cluster.gpu, such as H100"
    )


def _local_gpu(name: str) -> Device:
    try:
        return find_device(name)
    except DeviceError:
        from workers.measure.environment import first_gpu  # imports torch, which is slow

        if (gpu := first_gpu()) is None:
            raise
        return find_or_estimate_device(*gpu)


def device_bytes(device: Device, ranks: int) -> int:
    """Returns the memory that each of `ranks` ranks has without `cluster.memory_gib`."""
    if device.link_kind != "memory" or device.measured:
        return device.memory_bytes
    return math.floor(host_memory_bytes() * HOST_SHARE / ranks)


def _missing_features(device: Device) -> tuple[tuple[str, str], ...]:
    if device.link_kind == "memory":
        from workers.probe.doctor import lacks

        return lacks(CPU)
    return kernel_refusals(device)
