"""Rules about tensor and sequence parallelism."""

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def tensor_has_a_plan(plan: Plan, context: RuleContext) -> str | None:
    """The architecture must have a plan for splitting its projections."""
    reason = context.model.tensor.refusal
    return f"tensor {plan.tensor}: {reason}" if plan.tensor > 1 and reason else None


def tensor_stays_inside_a_node(plan: Plan, context: RuleContext) -> str | None:
    """Tensor ranks exchange activations in every block, too often for links between nodes.

    Source:
        Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters,
        section 3.2: tensor parallelism up to the GPUs of a node, pipelines across nodes.
    """
    slots = context.cluster.node_slots
    if slots is None or plan.tensor <= slots:
        return None
    return f"tensor {plan.tensor} exceeds the {slots} ranks that fit on one node"


def tensor_divides(plan: Plan, context: RuleContext) -> str | None:
    """Each tensor rank computes a whole number of heads and of hidden units."""
    if plan.tensor == 1:
        return None
    for name, count in context.model.tensor.divisors:
        if count % plan.tensor:
            return f"{name} {count} is not a multiple of tensor {plan.tensor}"
    return None


def sequence_can_be_split(plan: Plan, context: RuleContext) -> str | None:
    """Requires blocks that process each token independently between matmuls."""
    reason = context.model.tensor.sequence_refusal
    if not plan.sequence_parallel or plan.tensor == 1 or not reason:
        return None
    return f"sequence_parallel: {reason}"


def sequence_divides(plan: Plan, context: RuleContext) -> str | None:
    """Rows are padded to a multiple of the ranks, but not beyond the longest sample."""
    length = context.spec.train.sequence_length
    if not plan.sequence_parallel or length % plan.tensor == 0:
        return None
    return (
        f"sequence_parallel: train.sequence_length {length} is not a multiple of tensor"
        f" {plan.tensor}"
    )


def sequence_parallel_needs_torch(plan: Plan, _: RuleContext) -> str | None:
    """DeepSpeed's AutoTP splits projections and leaves the sequence whole.

    Source:
        deepspeed/module_inject/auto_tp.py (0.19.8).
    """
    if not plan.sequence_parallel or plan.engine == "torch":
        return None
    return f"engine {plan.engine} splits only projections; sequence_parallel needs engine torch"


def autotp_trains(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed's AutoTP must split the architecture correctly, forward and backward."""
    reason = context.model.tensor.autotp_refusal
    if plan.engine != "deepspeed" or plan.tensor == 1 or not reason:
        return None
    return f"engine deepspeed with tensor {plan.tensor}: {reason}"


def autotp_recomputes_whole_blocks(plan: Plan, _: RuleContext) -> str | None:
    """Selective recomputation saves matmul outputs, which AutoTP sums over ranks in place.

    Backward would sum the saved sums again, and losses would differ in the third digit.

    Source:
        deepspeed/module_inject/layers.py:RowParallel.forward (0.19.8).
    """
    keeps = plan.checkpoint_mode == "selective" and plan.checkpoint_ratio > 0
    keeps = keeps or plan.selective_blocks > 0
    if plan.engine != "deepspeed" or plan.tensor == 1 or not keeps:
        return None
    return (
        f"engine deepspeed with tensor {plan.tensor} changes the outputs that checkpoint_mode"
        " selective saves: checkpoint_mode must be full"
    )
