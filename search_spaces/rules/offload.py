"""State that lies in host memory or on NVMe."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def fsdp_offloads_all_or_nothing(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 knows one policy for all state.

    Source:
        torch.distributed.fsdp.CPUOffloadPolicy: parameters, gradients and optimizer states.
    """
    if plan.engine != "torch" or plan.offload_optimizer == plan.offload_parameters:
        return None
    return (
        "FSDP2 moves weights, gradients and optimizer states together: offload_optimizer"
        f" {plan.offload_optimizer} and offload_parameters {plan.offload_parameters} must be equal"
    )


def nvme_needs_deepspeed(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 offloads to host memory alone.

    Source:
        torch.distributed.fsdp has no offload policy but CPUOffloadPolicy (torch 2.13).
    """
    wanted = "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    if plan.engine == "deepspeed" or not wanted:
        return None
    return f"engine {plan.engine} offloads to cpu only: nvme needs engine deepspeed"


def parameter_offload_needs_zero_three(plan: Plan, _: RuleContext) -> str | None:
    """Only ZeRO-3 fetches weights when they are wanted.

    Source:
        deepspeed/runtime/zero/offload_config.py (0.19.8): "Valid only with stage 3".
    """
    if plan.engine != "deepspeed" or plan.offload_parameters == "none" or plan.zero_stage == 3:
        return None
    return (
        f"DeepSpeed offloads parameters at zero_stage 3 only: offload_parameters is"
        f" {plan.offload_parameters} at zero_stage {plan.zero_stage}"
    )


def optimizer_nvme_needs_zero_three(plan: Plan, _: RuleContext) -> str | None:
    """Below stage 3 DeepSpeed takes `nvme` and keeps the states in host memory.

    Source:
        deepspeed/runtime/zero/stage_1_and_2.py (0.19.8) knows no NVMe, only `cpu_offload`.
    """
    if plan.engine != "deepspeed" or plan.offload_optimizer != "nvme" or plan.zero_stage == 3:
        return None
    return (
        "DeepSpeed moves optimizer states to NVMe at zero_stage 3 only; at zero_stage"
        f" {plan.zero_stage} nvme would mean cpu"
    )


def nvme_has_a_folder(plan: Plan, around: RuleContext) -> str | None:
    """Where the drive is mounted, only the user can tell."""
    wanted = "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    if not wanted or around.spec.cluster.nvme_folder:
        return None
    return "offload to nvme needs cluster.nvme_folder, a folder on each node's drive"


def nvme_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """DeepSpeed reads and writes through an extension that needs libaio."""
    if "nvme" not in (plan.offload_optimizer, plan.offload_parameters):
        return None
    return around.cluster.lack("nvme")


def cpu_adam_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """DeepSpeed updates offloaded states on the CPU, by an extension that is compiled."""
    if plan.engine != "deepspeed" or plan.offload_optimizer == "none":
        return None
    return around.cluster.lack("cpu_adam")


def cpu_adam_is_the_optimizer(plan: Plan, _: RuleContext) -> str | None:
    """Where states are offloaded, DeepSpeed has one optimizer.

    Source:
        deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.8): DeepSpeedCPUAdam.
    """
    offloaded = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    if not offloaded or plan.optimizer == "adamw_fused":
        return None
    return (
        "DeepSpeed updates offloaded states by its own CPU Adam: optimizer must be adamw_fused"
        f" and is {plan.optimizer}"
    )


def pinning_needs_cuda(plan: Plan, around: RuleContext) -> str | None:
    """Page-locked memory is what a GPU copies from."""
    if not plan.pin_memory or around.cluster.device != "cpu":
        return None
    return "pin_memory is for copies to a GPU, the ranks are CPUs"
