"""From a specification and what was typed beside it to a question: which device, how many."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from orchestrator.fingerprint import container_memory_bytes, system_facts
from orchestrator.planning.question import Question
from search_spaces.errors import UserError
from search_spaces.facts import ModelFacts
from search_spaces.hardware import Device, find_device, load_device_file
from search_spaces.spec.schema import GIB, SweepSpec

CPU = "cpu"
_HOST_SHARE = 0.9  # of a machine's memory that its ranks may share, as `workers.memory` has it


def question_of(
    spec: SweepSpec,
    model: ModelFacts,
    device: Device,
    *,
    ranks: tuple[int, ...] = (),
    memory_gib: tuple[float, ...] = (),
    price_per_hour: float | None = None,
    top: int = 10,
) -> Question:
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
    return Question(
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
        from workers.doctor import lacks

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
    from workers.models.source import raw_config

    fields: dict[str, Any] = raw_config(spec.model) | spec.model.config
    found: dict[int, str] = {}
    for name in _SIZES:
        size = fields.get(name)
        if isinstance(size, int) and not isinstance(size, bool):
            found[size] = f"{found[size]} and {name}" if size in found else name
    return found


# as Llama and its kin, GPT-2 and T5 have them
_SIZES = (
    *("hidden_size", "n_embd", "d_model"),
    *("intermediate_size", "n_inner", "d_ff", "moe_intermediate_size"),
    *("vocab_size", "head_dim", "d_kv"),
)
