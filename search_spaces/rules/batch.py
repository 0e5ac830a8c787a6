"""How a step is laid out: the global batch, and samples in batches."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, Surroundings


def global_batch_is_kept(plan: Plan, around: Surroundings) -> str | None:
    """Every plan takes the same samples per optimizer step, else speeds do not compare."""
    wanted = around.spec.train.global_batch
    reached = plan.micro_batch * plan.accumulation * plan.data
    if reached == wanted:
        return None
    return (
        f"micro_batch {plan.micro_batch} x accumulation {plan.accumulation} x data {plan.data}"
        f" is {reached}, train.global_batch is {wanted}"
    )


def packing_is_kept_apart(plan: Plan, around: Surroundings) -> str | None:
    """Packed samples must not attend to each other, or another problem is being solved."""
    if plan.batching != "packed" or around.model.packing:
        return None
    return f"{around.model.architecture} does not keep packed samples apart by position ids"


def batching_needs_lengths(plan: Plan, around: Surroundings) -> str | None:
    """With samples of one length there is nothing to group or to pack."""
    if plan.batching == "padded" or around.spec.data.kind != "fixed":
        return None
    return f"batching {plan.batching} equals padded where every sample has the same length"


RULES: tuple[Rule, ...] = (global_batch_is_kept, packing_is_kept_apart, batching_needs_lengths)
