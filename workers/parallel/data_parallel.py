"""Data parallelism: DDP with compressed gradients, and sharding by FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    fp16_compress_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from search_spaces.plan import Compression
from search_spaces.settings.render import TorchSettings
from workers.parallel.compile import without_ddp_splits
from workers.parallel.split_modules import localize
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


# DDP rebuilds its buckets after the first step, so the first steps are uncompressed. Torch's
# default is 1000 steps, longer than a measurement; its minimum is 2.
_UNCOMPRESSED_STEPS = 2
_RANK = 1  # of the matrices that approximate a gradient; torch's default


def compress_gradients(
    replicas: DistributedDataParallel, compression: Compression, group: dist.ProcessGroup
) -> None:
    """Registers compression for the gradients that the replicas average over `group`.

    PowerSGD keeps the compression error for the next step, which takes as much memory as the
    gradients.

    Source: Vogels et al. 2019, "PowerSGD: Practical Low-Rank Gradient Compression for
    Distributed Optimization".
    """
    match compression:
        case "fp16":
            replicas.register_comm_hook(group, fp16_compress_hook)
        case "bf16":
            replicas.register_comm_hook(group, bf16_compress_hook)
        case "powersgd":
            state = PowerSGDState(
                process_group=group,
                matrix_approximation_rank=_RANK,
                start_powerSGD_iter=_UNCOMPRESSED_STEPS,
            )
            replicas.register_comm_hook(state, powerSGD_hook)
        case "none":
            pass


def replicate(
    module: nn.Module, settings: TorchSettings, mesh: Mesh, device: torch.device
) -> nn.Module:
    """Wraps the module in DDP over the data ranks, on `device`."""
    localize(module)  # DDP does not support DTensor
    replicas = DistributedDataParallel(
        module,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=mesh.data_group,
        bucket_cap_mb=settings.bucket_mib,
        gradient_as_bucket_view=settings.gradient_as_bucket_view,
    )
    if settings.compile:
        replicas.forward = without_ddp_splits(replicas.forward)  # type: ignore[method-assign]
    compress_gradients(replicas, settings.compression, mesh.data_group)
    return replicas
