"""Applies all techniques of a plan to a model, in their fixed order."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_common import HSDPMeshInfo

from search_spaces.settings.blocks import BlockSettings
from search_spaces.settings.render import TorchSettings
from workers.data.batches import is_causal_lm
from workers.models.built import BuiltModel
from workers.parallel.split_modules import localize
from workers.parallel.tensor import split_blocks
from workers.plain_torch.blocks import (
    checkpoint_blocks,
    compile_blocks,
    compute_in_float8,
    tile_mlps,
)
from workers.plain_torch.data_parallel import replicate, shard
from workers.plain_torch.head_loss import replace_loss
from workers.plain_torch.selective import selective_contexts
from workers.plain_torch.states import hold_in_bf16
from workers.process_groups import Mesh

_MESH_AFTER_FORWARD = "_get_post_forward_mesh_info"  # a function of FSDP2


def parallelize(
    model: BuiltModel, settings: TorchSettings, mesh: Mesh | None, device: torch.device
) -> nn.Module:
    """Applies the plan to a model or a stage of it, on `device`; returns the wrapped module.

    The type of weights comes first. Tensor parallelism replaces them by slices, expert parallelism
    by some of the experts. Recomputation and compilation follow, which wrap the computation of a
    block. Sharding comes next, so that a block's weights are gathered around its recomputation.
    Weights get memory and values after sharding, so that a rank only ever holds its own shards. DDP
    comes last, since it broadcasts real weights.
    """
    if settings.states != "fp32":
        hold_in_bf16(model.module)
    if settings.tensor > 1 and mesh is not None:
        split_blocks(model, settings, mesh)
    experts: tuple[tuple[nn.Module, DeviceMesh], ...] = ()
    if mesh is not None and mesh.experts is not None:
        from workers.parallel.experts import split_experts  # needs transformers

        experts = split_experts(model.module, mesh)
    context = None if mesh is None else mesh.context
    if context is not None:
        from workers.parallel.context import split_attention  # needs transformers

        split_attention(model.module, context.get_group("together"))
    blocks = wrap_blocks(
        model.module, model.blocks, settings.blocks, divides_tokens=context is not None
    )
    weights_on = device
    if settings.fsdp2 is not None and mesh is not None:
        with _kept_by(mesh.resharded):
            axes = ("replicate", "shard") if mesh.size("replicate") > 1 else "shard"
            sharding = asdict(settings.fsdp2)
            shard(model.module, blocks, mesh.devices[axes], experts=experts, **sharding)
        weights_on = torch.device("cpu") if settings.fsdp2.offload else device
    model.initial.materialise(model.module, device, weights_on=weights_on)
    if settings.ddp is not None and mesh is not None:
        localize(model.module)  # DDP does not support DTensor
        return replicate(model.module, device, mesh.data_group, **asdict(settings.ddp))
    return model.module


def wrap_blocks(
    module: nn.Module,
    blocks: Sequence[nn.Module],
    settings: BlockSettings,
    *,
    divides_tokens: bool = False,
) -> Sequence[nn.Module]:
    """Recomputes and compiles the blocks of a model, under any engine; returns all blocks.

    Its head computes the loss unless that is whole and of the model's own vocabulary. With
    `divides_tokens` ranks have parts of rows, whose labels are shifted already.
    """
    if settings.experts_kernel != "grouped_mm":
        cast(Any, module).set_experts_implementation(settings.experts_kernel)
    if settings.mlp_tiles > 1:
        tile_mlps(blocks, settings.mlp_tiles)
    if settings.float8 != "none":
        compute_in_float8(blocks, settings.float8)
    contexts = {
        index: selective_contexts(offload=index in settings.offloaded, compiled=settings.compile)
        for index in settings.selective
    }
    blocks = checkpoint_blocks(
        module, blocks, settings.recomputed, offloaded=settings.offloaded, contexts=contexts
    )
    if settings.compile:
        compile_blocks(blocks, mode=settings.compile_mode, budget=settings.budget)
    if settings.loss != "whole" or settings.vocab_multiple > 1:
        shifts = is_causal_lm(module) and not divides_tokens
        multiple = settings.vocab_multiple
        replace_loss(module, settings.loss, shifts=shifts, vocab_multiple=multiple)
    return blocks


@contextlib.contextmanager
def _kept_by(resharded: DeviceMesh | None) -> Iterator[None]:
    """Has FSDP2 use the groups of this mesh between forward and backward.

    It would open groups of its own for each block, which nobody could abort.

    Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _get_post_forward_mesh_info (torch 2.13).
    """
    if resharded is None:
        yield
        return
    mesh = HSDPMeshInfo(resharded, shard_mesh_dim=1, replicate_mesh_dim=0)
    found = getattr(_fully_shard, _MESH_AFTER_FORWARD)
    setattr(_fully_shard, _MESH_AFTER_FORWARD, lambda *_: mesh)
    try:
        yield
    finally:
        setattr(_fully_shard, _MESH_AFTER_FORWARD, found)
