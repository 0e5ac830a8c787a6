"""The order in which techniques are applied to a model: one short function."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from search_spaces.render import TorchSettings
from workers.models.built import BuiltModel
from workers.parallel.checkpoint import checkpoint_blocks
from workers.parallel.ddp import replicate
from workers.parallel.fsdp import shard


def parallelize(
    model: BuiltModel,
    settings: TorchSettings,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> nn.Module:
    """The model as its plan wants it, on `device`: recomputation first, then sharding.

    Sharding comes last, so that a block's weights are gathered around its recomputation, and
    before the move to the device, which then only has to hold its own shards.
    """
    blocks = checkpoint_blocks(model.module, model.blocks, settings.checkpointed)
    if settings.wrapper == "fsdp2" and group is not None:
        return shard(model.module, blocks, settings, group, device)
    module = model.module.to(device)
    if settings.wrapper == "ddp" and group is not None:
        return replicate(module, group, device)
    return module
