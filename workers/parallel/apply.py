"""Applies all techniques of a plan to a model, in their fixed order."""

from __future__ import annotations

import torch
from torch import nn

from search_spaces.settings.render import TorchSettings
from workers.models.built import BuiltModel
from workers.parallel.checkpoint import checkpoint_blocks
from workers.parallel.compile import compile_blocks
from workers.parallel.data_parallel import replicate, shard
from workers.parallel.tensor import split_blocks
from workers.process_groups import Mesh


def parallelize(
    model: BuiltModel,
    settings: TorchSettings,
    mesh: Mesh | None,
    device: torch.device,
) -> nn.Module:
    """Applies the plan to a model or a stage of it, on `device`; returns the wrapped module.

    Tensor parallelism comes first, since it replaces weights by slices. Recomputation and
    compilation follow, which wrap the computation of a block. Sharding comes next, so that a
    block's weights are gathered around its recomputation. Weights get memory and values after
    sharding, so that a rank only ever holds its own shards. DDP comes last, since it broadcasts
    real weights.
    """
    if settings.tensor > 1 and mesh is not None:
        split_blocks(model, settings, mesh)
    blocks = checkpoint_blocks(model.module, model.blocks, settings.checkpoint)
    if settings.compile:
        compile_blocks(blocks)
    if settings.wrapper == "fsdp2" and mesh is not None:
        shard(model.module, blocks, settings, mesh)
    weights_on = torch.device("cpu") if settings.offload else device
    model.initial.materialise(model.module, device, weights_on=weights_on)
    if settings.wrapper == "ddp" and mesh is not None:
        return replicate(model.module, settings, mesh, device)
    return model.module
