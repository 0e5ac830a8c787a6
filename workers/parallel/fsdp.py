"""Weights, gradients and optimizer states split over ranks: FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from search_spaces.render import TorchSettings


def shard(
    module: nn.Module,
    blocks: tuple[nn.Module, ...],
    settings: TorchSettings,
    group: dist.ProcessGroup,
    device: torch.device,
) -> nn.Module:
    """Splits each block, then what is left, over the ranks of the group, in place."""
    mesh = DeviceMesh.from_group(group, device.type)
    policy = MixedPrecisionPolicy()
    if settings.compute == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*blocks, module):
        fully_shard(
            part,
            mesh=mesh,
            mp_policy=policy,
            reshard_after_forward=settings.reshard_after_forward,
        )
    return module
