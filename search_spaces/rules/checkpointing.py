"""Recomputation in backward."""

from __future__ import annotations

from search_spaces.domains import CHECKPOINT_RATIOS
from search_spaces.plan import Plan
from search_spaces.render import checkpointed_blocks
from search_spaces.rules.base import Rule, Surroundings


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


RULES: tuple[Rule, ...] = (
    checkpointing_needs_blocks,
    checkpoint_ratio_is_distinct,
    checkpoint_offload_is_not_compiled,
)
