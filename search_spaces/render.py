"""From a plan to engine settings: the one place that says what a knob sets.

The worker applies these settings and an export writes them down, so that what was measured is
what ships.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from search_spaces.plan import Attention, Plan, Precision
from search_spaces.rules import checkpointed_blocks

Wrapper = Literal["none", "ddp", "fsdp2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchSettings:
    """What engine `torch` does to a model.

    `reshard_after_forward` matters to FSDP2 alone. `compute` is the precision of forward and
    backward: DDP gets it by autocast, FSDP2 by its mixed-precision policy (weights gathered in
    it, gradients reduced in fp32); master weights and optimizer states are fp32 in both.
    `sync_every_pass` tells whether gradients are reduced in each forward pass or only in the
    last of a step: FSDP2 must, else it holds whole gradients and shards nothing.
    """

    wrapper: Wrapper
    reshard_after_forward: bool
    compute: Precision
    sync_every_pass: bool
    checkpointed: tuple[int, ...]  # indices of the blocks that are recomputed
    attention: Attention


def render_torch(plan: Plan, blocks: int) -> TorchSettings:
    """The settings of a plan for a model with so many repeated blocks."""
    sharded = plan.zero_stage in (2, 3)
    wrapper: Wrapper = "fsdp2" if sharded else "ddp" if plan.data > 1 else "none"
    return TorchSettings(
        wrapper=wrapper,
        reshard_after_forward=plan.zero_stage == 3,
        compute=plan.precision,
        sync_every_pass=sharded,
        checkpointed=spread(checkpointed_blocks(plan.checkpoint_ratio, blocks), blocks),
        attention=plan.attention,
    )


def spread(chosen: int, blocks: int) -> tuple[int, ...]:
    """Indices of `chosen` blocks, spread evenly over all of them."""
    return tuple(
        index
        for index in range(blocks)
        if (index + 1) * chosen // blocks > index * chosen // blocks
    )
