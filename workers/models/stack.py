"""A model as a stack: what lies before the first block, in the blocks, and behind the last."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from workers.models.blocks import find_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class StackFacts:
    """Parameters by place, and why the stack cannot be cut into stages (None if it can)."""

    block_parameters: tuple[int, ...]
    embedding_parameters: int
    head_parameters: int
    refusal: str | None


def stack_facts(module: nn.Module) -> StackFacts:
    """Looks at a module, which may be on the meta device."""
    blocks = find_blocks(module)
    return StackFacts(
        block_parameters=tuple(
            sum(weight.numel() for weight in block.parameters()) for block in blocks
        ),
        embedding_parameters=0,
        head_parameters=0,
        refusal=f"{type(module).__name__} cannot be cut into stages",
    )
