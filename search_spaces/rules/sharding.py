"""State split over data ranks: ZeRO and FSDP2."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def zero_one_needs_deepspeed(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 splits gradients and weights as well, so that it has no stage 1.

    Source:
        torch.distributed.fsdp.fully_shard; ZeRO's stages: arXiv:1910.02054.
    """
    if plan.zero_stage != 1 or plan.engine != "torch":
        return None
    return "engine torch splits states by FSDP2, zero_stage 2 or 3: zero_stage 1 needs deepspeed"


def sharding_needs_ranks(plan: Plan, _: RuleContext) -> str | None:
    """ZeRO over one rank splits nothing; it is of use where DeepSpeed offloads through it."""
    if plan.zero_stage == 0 or plan.data > 1:
        return None
    offloads = {plan.offload_optimizer, plan.offload_parameters} != {"none"}
    if plan.engine == "deepspeed" and offloads:
        return None
    return f"zero_stage {plan.zero_stage} splits state over data ranks, and there is one"


def replicas_divide_data(plan: Plan, _: RuleContext) -> str | None:
    """Each replica is a group of as many data ranks."""
    if plan.data % plan.replicas == 0:
        return None
    return f"data {plan.data} is no multiple of replicas {plan.replicas}"


def replicas_leave_shards(plan: Plan, _: RuleContext) -> str | None:
    """A replica of one rank shards nothing: that is DDP under another name."""
    if plan.replicas == 1 or plan.data != plan.replicas:
        return None
    return (
        f"replicas {plan.replicas} of data {plan.data} leave one rank to shard over:"
        " that is zero_stage 0 by another name"
    )


def compression_fits_device(plan: Plan, around: RuleContext) -> str | None:
    """DDP takes its bf16 hook for NCCL alone.

    Source:
        torch.nn.parallel.distributed: `_check_comm_hook`.
    """
    if plan.compression != "bf16" or around.cluster.device != "cpu":
        return None
    return "compression bf16 is for ranks that talk over NCCL, the ranks are CPUs"
