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
