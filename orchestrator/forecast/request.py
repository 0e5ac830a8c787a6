"""What `plimsoll plan` is asked."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any

import psutil

from orchestrator.host import container_memory_bytes, system_facts
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.errors import UserError
from search_spaces.facts import ClusterFacts, ModelFacts
from search_spaces.hardware import Device, find_device, load_device_file
from search_spaces.rules.base import RuleContext
from search_spaces.spec.schema import GIB, SweepSpec

SURE_TO_FIT = 0.9  # probability from which on a plan is recommended
_HOST_SHARE = 0.9  # of a host's memory: the system and loader processes need some

TraceVariants = Callable[[tuple[VariantKey, ...]], Footprint]
"""Gives a footprint with at least these variants."""
CPU = "cpu"
# as Llama and its kin, GPT-2 and T5 have them
_SIZES = (
    *("hidden_size", "n_embd", "d_model"),
    *("intermediate_size", "n_inner", "d_ff", "moe_intermediate_size"),
    *("vocab_size", "head_dim", "d_kv"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningRequest:
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
        """What the headroom leaves of the limit: the load line."""
        return self.limit_bytes * (1 - self.spec.objective.headroom)

    @property
    def host_limit_bytes(self) -> float:
        """What one rank may hold of the host's memory; a rank on a CPU lies in it as a whole."""
        return inf if self.kind == "cpu" else _HOST_SHARE * self.device.host_memory_bytes

    def limited_to(self, limit_bytes: int) -> PlanningRequest:
        """The same question with another limit."""
        return replace(self, limit_bytes=limit_bytes)

    def around(self, ranks: int) -> RuleContext:
        """What rules look at on so many devices."""
        cluster = ClusterFacts(
            device=self.kind,
            slots=ranks,
            memory_limit_bytes=self.limit_bytes,
            node_slots=None if self.kind == "cpu" else self.device.node_devices,
            lacks=self.lacks,
        )
        return RuleContext(spec=_of_one_kind(self.spec), model=self.model, cluster=cluster)


def _of_one_kind(spec: SweepSpec) -> SweepSpec:
    """A specification for several kinds of nodes, as it is where there is but one."""
    cluster = spec.cluster.model_copy(update={"accelerators": {}})
    space = spec.space.model_copy(update={"accelerator": None})
    return spec.model_copy(update={"cluster": cluster, "space": space})


def planning_request(
    spec: SweepSpec,
    model: ModelFacts,
    device: Device,
    *,
    ranks: tuple[int, ...] = (),
    memory_gib: tuple[float, ...] = (),
    price_per_hour: float | None = None,
    top: int = 10,
) -> PlanningRequest:
    """The question that a specification and a command line ask.

    Args:
        spec: The specification.
        model: What is known of its model.
        device: Which device; see `device_of`.
        ranks: How many; those of the specification or of a node if empty.
        memory_gib: Other limits of one rank to compare with, in GiB.
        price_per_hour: Of one device; `cluster.price_per_gpu_hour` or the device's if None.
        top: How many of the best plans to tell.
    """
    asked = ranks or (default_ranks(spec, device),)
    prices = (price_per_hour, spec.cluster.price_per_gpu_hour, device.price_per_hour)
    return PlanningRequest(
        spec=spec,
        model=model,
        device=device,
        ranks=asked,
        limit_bytes=_limit_bytes(spec, device, asked[0]),
        memory_sizes=tuple(math.floor(size * GIB) for size in memory_gib),
        price_per_hour=next((price for price in prices if price is not None), None),
        top=top,
        lacks=_lacks(device),
    )


def device_of(
    spec: SweepSpec,
    *,
    name: str | None,
    file: Path | None,
    devices_per_node: int | None,
) -> Device:
    """The device that is planned for.

    That of the command line, or of `cluster.gpu`, or else what this machine has.

    Raises:
        DeviceError: If nobody knows it.
        SpecError: If the file has faults.
        UserError: If no device is named and this machine has none, or the file holds several.
    """
    if file is not None:
        found = _from_file(file, name)
    else:
        found = find_device(name or spec.cluster.gpu or _own_device(spec))
    per_node = devices_per_node or spec.cluster.gpus_per_node
    return replace(found, node_devices=per_node) if per_node else found


def default_ranks(spec: SweepSpec, device: Device) -> int:
    """Ranks where the command line names none: the specification's, or else those of a node."""
    if spec.cluster.workers != "auto":
        return spec.cluster.workers
    if device.link_kind == "memory":
        return max((os.cpu_count() or 1) // spec.cluster.cpus_per_worker, 1)
    return min(device.node_devices, 8)


def _from_file(file: Path, name: str | None) -> Device:
    devices = load_device_file(file)
    if name is None:
        if len(devices) == 1:
            return devices[0]
        names = ", ".join(device.name for device in devices)
        raise UserError(f"{file} holds {len(devices)} devices: say --gpu with one of {names}")
    matching = [device for device in devices if name in (device.name, *device.aliases)]
    if not matching:
        names = ", ".join(device.name for device in devices)
        raise UserError(f"{file} holds no device {name!r}, it has {names}")
    return matching[0]


def _own_device(spec: SweepSpec) -> str:
    """What this machine has."""
    if spec.cluster.device == CPU:
        return CPU
    gpus = system_facts()["gpus"]
    if gpus:
        return str(gpus[0]["name"])
    if spec.cluster.device == "auto":
        return CPU
    raise UserError(
        "this machine has no GPU to plan for: say which with --gpu or cluster.gpu, such as H100"
    )


def _limit_bytes(spec: SweepSpec, device: Device, ranks: int) -> int:
    if spec.memory_limit_bytes is not None:
        return spec.memory_limit_bytes
    if device.link_kind != "memory" or device.measured:
        return device.memory_bytes
    whole: int = psutil.virtual_memory().total
    whole = min(whole, container_memory_bytes() or whole)
    return math.floor(whole * _HOST_SHARE / ranks)


def _lacks(device: Device) -> tuple[tuple[str, str], ...]:
    """What the device cannot do; software of another machine is taken to be there."""
    if device.link_kind == "memory":
        from workers.probe.doctor import lacks

        return lacks(CPU)
    if device.bf16_flops_per_second:
        return ()
    flash = ("flash_attention_2", "flash_attention_3")
    return tuple((name, f"{name} needs an Ampere GPU or a later one") for name in flash)


def size_names(spec: SweepSpec) -> dict[int, str]:
    """What the sizes of the model's matrices are called in its configuration.

    A size that two fields share bears both names. A function of the user's names none.
    """
    if ":" in spec.model.name:
        return {}
    from workers.models.config_source import raw_config

    fields: dict[str, Any] = raw_config(spec.model) | spec.model.config
    found: dict[int, str] = {}
    for name in _SIZES:
        size = fields.get(name)
        if isinstance(size, int) and not isinstance(size, bool):
            found[size] = f"{found[size]} and {name}" if size in found else name
    return found
