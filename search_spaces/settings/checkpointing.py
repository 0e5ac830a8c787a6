"""Which blocks a checkpoint ratio recomputes: the same for every engine."""

from __future__ import annotations

from dataclasses import dataclass

from search_spaces.plan import CheckpointMode, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """Which blocks are recomputed in backward, by index, and what is kept of them.

    Mode `selective` keeps the outputs of matmuls and of attention. With `offload`, what is kept
    lies in host memory until backward wants it. Where blocks are `compiled`, the compiler keeps it.
    """

    blocks: tuple[int, ...]
    mode: CheckpointMode
    offload: bool
    compiled: bool = False


def render_checkpoint(plan: Plan, blocks: int) -> CheckpointSettings:
    """Which of so many blocks a plan recomputes: the same for every engine."""
    return CheckpointSettings(
        blocks=spread(checkpointed_blocks(plan.checkpoint_ratio, blocks), blocks),
        mode=plan.checkpoint_mode,
        offload=plan.checkpoint_offload,
        compiled=plan.compile,
    )


def checkpointed_blocks(ratio: float, blocks: int) -> int:
    """How many of `blocks` a checkpoint ratio recomputes, rounded half up."""
    return int(ratio * blocks + 0.5)


def spread(chosen: int, blocks: int) -> tuple[int, ...]:
    """Indices of `chosen` blocks, spread evenly over all of them."""
    return tuple(
        index
        for index in range(blocks)
        if (index + 1) * chosen // blocks > index * chosen // blocks
    )
