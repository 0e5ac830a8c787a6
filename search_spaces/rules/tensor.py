"""Blocks split over tensor ranks, and the sequence beside them."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def tensor_has_a_plan(plan: Plan, around: RuleContext) -> str | None:
    """The architecture must say which projections may be split, and how."""
    refused = around.model.tensor.refusal
    return f"tensor {plan.tensor}: {refused}" if plan.tensor > 1 and refused else None


def tensor_stays_inside_a_node(plan: Plan, around: RuleContext) -> str | None:
    """Tensor ranks exchange activations in every block, for which links between nodes are slow.

    Source:
        Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters,
        section 3.2: tensor parallelism up to the GPUs of a node, pipelines across nodes.
    """
    slots = around.cluster.of(plan.accelerator).node_slots
    if slots is None or plan.tensor <= slots:
        return None
    return f"tensor {plan.tensor} is more than the {slots} ranks that one node has room for"


def tensor_divides(plan: Plan, around: RuleContext) -> str | None:
    """What a tensor rank computes is a whole share of heads and of hidden units."""
    if plan.tensor == 1:
        return None
    for what, count in around.model.tensor.divisors:
        if count % plan.tensor:
            return f"{what} {count} is no multiple of tensor {plan.tensor}"
    return None


def sequence_can_be_split(plan: Plan, around: RuleContext) -> str | None:
    """Between matmuls the blocks must treat each token by itself."""
    refused = around.model.tensor.sequence_refusal
    if not plan.sequence_parallel or plan.tensor == 1 or not refused:
        return None
    return f"sequence_parallel: {refused}"


def sequence_divides(plan: Plan, around: RuleContext) -> str | None:
    """Rows are filled up until ranks can share them, which must not go beyond the longest."""
    length = around.spec.train.sequence_length
    if not plan.sequence_parallel or length % plan.tensor == 0:
        return None
    return f"sequence_parallel: train.sequence_length {length} is no multiple of {plan.tensor}"


def sequence_parallel_needs_torch(plan: Plan, _: RuleContext) -> str | None:
    """DeepSpeed's AutoTP splits projections and leaves the sequence whole.

    Source:
        deepspeed/module_inject/auto_tp.py (0.19.8).
    """
    if not plan.sequence_parallel or plan.engine == "torch":
        return None
    return f"engine {plan.engine} splits projections only: sequence_parallel needs engine torch"


def autotp_trains(plan: Plan, around: RuleContext) -> str | None:
    """DeepSpeed's AutoTP must split the architecture right, forward and backward."""
    refused = around.model.tensor.autotp_refusal
    if plan.engine != "deepspeed" or plan.tensor == 1 or not refused:
        return None
    return f"engine deepspeed with tensor {plan.tensor}: {refused}"


def autotp_recomputes_whole_blocks(plan: Plan, _: RuleContext) -> str | None:
    """Selective recomputation keeps what a matmul gave; AutoTP sums it over ranks in place.

    The sum is then taken of a sum, and losses differ in the third digit.

    Source:
        deepspeed/module_inject/layers.py:RowParallel.forward (0.19.8).
    """
    keeps = plan.checkpoint_mode == "selective" and plan.checkpoint_ratio > 0
    if plan.engine != "deepspeed" or plan.tensor == 1 or not keeps:
        return None
    return (
        f"engine deepspeed with tensor {plan.tensor} sums in place what checkpoint_mode selective"
        " keeps: it must be full"
    )


def tensor_trains_all_weights(plan: Plan, around: RuleContext) -> str | None:
    """Adapters stand beside projections, and are not split with them."""
    if plan.tensor == 1 or around.spec.train.method == "full":
        return None
    return (
        f"train.method {around.spec.train.method}: adapters are not split,"
        f" tensor must be 1 and is {plan.tensor}"
    )
