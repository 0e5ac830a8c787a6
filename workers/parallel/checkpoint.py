"""Activation checkpointing: blocks that are recomputed in backward."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from search_spaces.render import CheckpointSettings
from workers.parallel.keeping import keep_on_device, keep_on_host
from workers.parallel.save_list import keep_policy


def checkpoint_blocks(
    module: nn.Module, blocks: tuple[nn.Module, ...], settings: CheckpointSettings
) -> tuple[nn.Module, ...]:
    """Wraps the chosen blocks inside `module`; returns all blocks as they now stand in it.

    Offloading goes around recomputation: what it moves is what the recomputation starts from,
    a block's input, and what selective checkpointing keeps besides.
    """
    picked = {id(blocks[index]) for index in settings.blocks}
    wrapped: dict[int, nn.Module] = {}
    options = _options(settings)

    def wrap(block: nn.Module) -> nn.Module:
        recomputed = checkpoint_wrapper(block, **options)
        wrapped[id(block)] = offload_wrapper(recomputed) if settings.offload else recomputed
        return wrapped[id(block)]

    if picked:
        apply_activation_checkpointing(
            module, checkpoint_wrapper_fn=wrap, check_fn=lambda block: id(block) in picked
        )
    return tuple(wrapped.get(id(block), block) for block in blocks)


def _options(settings: CheckpointSettings) -> dict[str, Any]:
    if settings.mode == "full":
        return {}
    if settings.compiled:  # the compiler understands torch's own contexts alone
        return {"context_fn": partial(create_selective_checkpoint_contexts, keep_policy())}
    return {"context_fn": keep_on_host if settings.offload else keep_on_device}
