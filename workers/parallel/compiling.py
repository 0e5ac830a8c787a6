"""Compilation of each block by itself, so that its time stays bounded by one block's."""

from __future__ import annotations

from torch import nn


def compile_blocks(blocks: tuple[nn.Module, ...]) -> None:
    """Compiles each block in place; equal blocks share what was compiled."""
    for block in blocks:
        block.compile()
