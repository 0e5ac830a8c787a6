"""Recomputation in backward."""

from __future__ import annotations

from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS
from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, Surroundings
from search_spaces.settings.render import checkpointed_blocks


def checkpointing_needs_blocks(plan: Plan, around: Surroundings) -> str | None:
    """Recomputation wraps repeated blocks; a model without any cannot be checkpointed so."""
    if plan.checkpoint_ratio == 0 or around.model.blocks:
        return None
    return f"{around.model.name} has no repeated blocks to recompute"


def checkpoint_ratio_is_distinct(plan: Plan, around: Surroundings) -> str | None:
    """Two ratios that recompute the same number of blocks are one plan, measured twice."""
    ratio, blocks = plan.checkpoint_ratio, around.model.blocks
    searched = around.spec.space.checkpoint_ratio or CHECKPOINT_RATIOS
    if not blocks or ratio not in searched:
        return None
    count = checkpointed_blocks(ratio, blocks)
    same = [other for other in searched if checkpointed_blocks(other, blocks) == count]
    kept = min(same, key=lambda other: (abs(other * blocks - count), other))
    if ratio == kept:
        return None
    return f"checkpoint_ratio {ratio:g} recomputes {count} of {blocks} blocks, as {kept:g} does"


def checkpoint_offload_is_not_compiled(plan: Plan, _: Surroundings) -> str | None:
    """A compiled block saves its weights with what backward needs: they would be moved as well."""
    if not (plan.checkpoint_offload and plan.compile):
        return None
    return (
        "checkpoint_offload moves what a compiled block saves, its weights too:"
        " compile must be false"
    )


def zero_3_compiles_no_selective_recomputation(plan: Plan, _: Surroundings) -> str | None:
    """ZeRO-3 adds each bias to the product in place, and to the kept product once more.

    Where blocks are not compiled, the worker copies what is kept before it is changed.

    Source:
        deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3.forward (0.19.8): losses
        drift away by 3e-4 in ten steps.
    """
    is_zero_3 = plan.engine == "deepspeed" and plan.zero_stage == 3
    if not (is_zero_3 and plan.compile and plan.checkpoint_mode == "selective"):
        return None
    return (
        "compiled, selective recomputation under DeepSpeed's ZeRO-3 adds biases twice:"
        " compile must be false, or checkpoint_mode full"
    )


RULES: tuple[Rule, ...] = (
    checkpointing_needs_blocks,
    checkpoint_ratio_is_distinct,
    checkpoint_offload_is_not_compiled,
    zero_3_compiles_no_selective_recomputation,
)
