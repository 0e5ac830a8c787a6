"""Activation checkpointing: blocks that are recomputed in backward."""

from __future__ import annotations

from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)

from search_spaces.render import CheckpointSettings


def checkpoint_blocks(
    module: nn.Module, blocks: tuple[nn.Module, ...], settings: CheckpointSettings
) -> tuple[nn.Module, ...]:
    """Wraps the chosen blocks inside `module`; returns all blocks as they now stand in it."""
    picked = {id(blocks[index]) for index in settings.blocks}
    wrapped: dict[int, nn.Module] = {}

    def wrap(block: nn.Module) -> nn.Module:
        wrapped[id(block)] = checkpoint_wrapper(block)
        return wrapped[id(block)]

    if picked:
        apply_activation_checkpointing(
            module, checkpoint_wrapper_fn=wrap, check_fn=lambda block: id(block) in picked
        )
    return tuple(wrapped.get(id(block), block) for block in blocks)
