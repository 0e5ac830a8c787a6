"""Sharding of weights, gradients and optimizer states by FSDP2."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from search_spaces.settings.render import TorchSettings
from workers.process_groups import Mesh


def shard(
    module: nn.Module,
    blocks: tuple[nn.Module, ...],
    settings: TorchSettings,
    mesh: Mesh,
) -> nn.Module:
    """Shards each block, then the remaining weights, over the data ranks, in place.

    Hybrid shard splits over the ranks of a replica and averages gradients over the replicas.
    """
    devices = _data_ranks(mesh)
    for part in (*blocks, module):
        fully_shard(
            part,
            mesh=devices,
            mp_policy=_precision(settings),
            offload_policy=_offload(settings, mesh.devices.device_type),
            reshard_after_forward=settings.reshard_after_forward,
        )
    return module


def _data_ranks(mesh: Mesh) -> DeviceMesh:
    if mesh.size("replicate") > 1:
        return mesh.devices["replicate", "shard"]
    return mesh.devices["shard"]


def _precision(settings: TorchSettings) -> MixedPrecisionPolicy:
    if settings.compute == "fp32":
        return MixedPrecisionPolicy()
    compute = {"bf16": torch.bfloat16, "fp16": torch.float16}[settings.compute]
    return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)


def _offload(settings: TorchSettings, device: str) -> OffloadPolicy:
    if not settings.offload:
        return OffloadPolicy()
    # without a device there are no copies that pinned memory could speed up
    return CPUOffloadPolicy(pin_memory=settings.pin_memory and device != "cpu")
