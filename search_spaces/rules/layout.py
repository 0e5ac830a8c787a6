"""Ranks and stages: what fits the cluster, and how a stack of blocks may be cut."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def cluster_has_room(plan: Plan, around: RuleContext) -> str | None:
    """A group that can never fit would be waited for without end (Ray Train retries it)."""
    slots = around.cluster.of(plan.accelerator).slots
    ranks = plan.tensor * plan.pipeline * plan.data
    if ranks <= slots:
        return None
    where = f"of {plan.accelerator} there is" if plan.accelerator else "the cluster has"
    return f"needs {ranks} ranks, {where} room for {slots}"


def accelerator_is_there(plan: Plan, around: RuleContext) -> str | None:
    """A plan runs on nodes of one kind, and on a cluster of several says on which."""
    known = [one.name for one in around.cluster.accelerators]
    if not known and not plan.accelerator:
        return None
    if plan.accelerator in known:
        return None
    if not plan.accelerator:
        return f"accelerator must be one of cluster.accelerators: {', '.join(known)}"
    told = ", ".join(known) or "none"
    return f"accelerator {plan.accelerator} is none of cluster.accelerators: {told}"


def pipeline_needs_torch(plan: Plan, _: RuleContext) -> str | None:
    """DeepSpeed's pipeline takes no module as it is.

    Source:
        deepspeed/runtime/pipe/module.py: models are written as a list of layers for it.
    """
    if plan.pipeline == 1 or plan.engine == "torch":
        return None
    return (
        f"engine {plan.engine} pipelines only models written as its PipelineModule;"
        f" pipeline {plan.pipeline} needs engine torch"
    )


def pipeline_can_cut(plan: Plan, around: RuleContext) -> str | None:
    """A stage must be a run of blocks that hand on one stream of hidden states."""
    refused = around.model.pipeline_refusal
    return f"pipeline {plan.pipeline}: {refused}" if plan.pipeline > 1 and refused else None


def pipeline_has_blocks(plan: Plan, around: RuleContext) -> str | None:
    """Each stage needs a block; an interleaved schedule has two stages on each rank."""
    if plan.pipeline == 1:
        return None
    stages = plan.pipeline * (2 if plan.pipeline_schedule == "interleaved" else 1)
    model = around.model
    if stages <= model.blocks:
        return None
    return (
        f"pipeline {plan.pipeline} with schedule {plan.pipeline_schedule} cuts into {stages}"
        f" stages, {model.name} has {model.blocks} blocks"
    )


def pipeline_is_filled(plan: Plan, _: RuleContext) -> str | None:
    """1F1B warms up with a micro-batch for each stage.

    Source:
        torch/distributed/pipelining/schedules.py, Schedule1F1B.__init__ (torch 2.13).
    """
    if plan.pipeline_schedule != "1f1b" or plan.accumulation >= plan.pipeline:
        return None
    return (
        f"schedule 1f1b needs a micro-batch for each stage: accumulation {plan.accumulation} is"
        f" below pipeline {plan.pipeline}"
    )


def interleaving_has_whole_rounds(plan: Plan, _: RuleContext) -> str | None:
    """Interleaved 1F1B takes micro-batches in rounds of one size.

    Source:
        torch/distributed/pipelining/schedules.py, ScheduleInterleaved1F1B.__init__ (torch 2.13).
    """
    if plan.pipeline_schedule != "interleaved":
        return None
    rounds = max(1, plan.accumulation // plan.pipeline)
    if plan.accumulation % rounds == 0:
        return None
    return (
        f"schedule interleaved takes {rounds} rounds of one size, accumulation {plan.accumulation}"
        f" (pipeline {plan.pipeline}) does not divide into them"
    )


def global_batch_is_kept(plan: Plan, around: RuleContext) -> str | None:
    """Every plan takes the same samples per optimizer step, else speeds do not compare."""
    wanted = around.spec.train.global_batch
    reached = plan.micro_batch * plan.accumulation * plan.data
    if reached == wanted:
        return None
    return (
        f"micro_batch {plan.micro_batch} x accumulation {plan.accumulation} x data {plan.data}"
        f" is {reached}, train.global_batch is {wanted}"
    )


def packing_is_kept_apart(plan: Plan, around: RuleContext) -> str | None:
    """Packed samples must not attend to each other, or another problem is being solved."""
    if plan.batching != "packed" or around.model.packing:
        return None
    return f"{around.model.architecture} does not keep packed samples apart by position ids"


def batching_needs_lengths(plan: Plan, around: RuleContext) -> str | None:
    """With samples of one length there is nothing to group or to pack."""
    if plan.batching == "padded" or around.spec.data.kind != "fixed":
        return None
    return f"batching {plan.batching} equals padded where every sample has the same length"
