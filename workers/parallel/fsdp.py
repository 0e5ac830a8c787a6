"""Weights, gradients and optimizer states split over ranks: FSDP2."""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from search_spaces.render import TorchSettings
from workers.mesh import Mesh


def shard(
    module: nn.Module,
    blocks: tuple[nn.Module, ...],
    settings: TorchSettings,
    mesh: Mesh,
) -> nn.Module:
    """Splits each block, then what is left, over the data ranks, in place."""
    devices = mesh.devices["shard"]
    policy = MixedPrecisionPolicy()
    if settings.compute == "bf16":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for part in (*blocks, module):
        fully_shard(
            part,
            mesh=devices,
            mp_policy=policy,
            reshard_after_forward=settings.reshard_after_forward,
        )
    return module
