"""Rules about state in host memory or on NVMe."""

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def fsdp_offloads_all_or_nothing(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 has one offload policy for all state.

    Source:
        torch.distributed.fsdp.CPUOffloadPolicy: parameters, gradients and optimizer states.
    """
    if plan.engine != "torch" or plan.offload_optimizer == plan.offload_parameters:
        return None
    return (
        "FSDP2 offloads weights, gradients and optimizer states together: offload_optimizer"
        f" ({plan.offload_optimizer}) and offload_parameters ({plan.offload_parameters}) must be"
        " equal"
    )


def nvme_needs_deepspeed(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 offloads only to host memory.

    Source:
        torch.distributed.fsdp has no offload policy but CPUOffloadPolicy (torch 2.13).
    """
    on_nvme = "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    if plan.engine == "deepspeed" or not on_nvme:
        return None
    return f"engine {plan.engine} offloads only to cpu; nvme needs engine deepspeed"


def parameter_offload_needs_zero_three(plan: Plan, _: RuleContext) -> str | None:
    """Only ZeRO-3 fetches weights when they are needed.

    Source:
        deepspeed/runtime/zero/offload_config.py (0.19.8): "Valid only with stage 3".
    """
    if plan.engine != "deepspeed" or plan.offload_parameters == "none" or plan.zero_stage == 3:
        return None
    return (
        f"DeepSpeed offloads parameters only at zero_stage 3, but offload_parameters is"
        f" {plan.offload_parameters} at zero_stage {plan.zero_stage}"
    )


def optimizer_nvme_needs_zero_three(plan: Plan, _: RuleContext) -> str | None:
    """Below stage 3, DeepSpeed accepts `nvme` but keeps the states in host memory.

    Source:
        deepspeed/runtime/zero/stage_1_and_2.py (0.19.8) has no NVMe support, only `cpu_offload`.
    """
    if plan.engine != "deepspeed" or plan.offload_optimizer != "nvme" or plan.zero_stage == 3:
        return None
    return (
        "DeepSpeed moves optimizer states to NVMe only at zero_stage 3; at zero_stage"
        f" {plan.zero_stage}, nvme would mean cpu"
    )


def nvme_has_a_folder(plan: Plan, context: RuleContext) -> str | None:
    """Only the user knows the mount point of the drive."""
    on_nvme = "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    if not on_nvme or context.spec.cluster.nvme_folder:
        return None
    return "offload to nvme needs cluster.nvme_folder, a folder on each node's drive"


def nvme_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed's NVMe extension needs libaio."""
    if "nvme" not in (plan.offload_optimizer, plan.offload_parameters):
        return None
    return context.cluster.lack("nvme")


def cpu_adam_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed updates offloaded states on the CPU with an extension that must be compiled."""
    if plan.engine != "deepspeed" or plan.offload_optimizer == "none":
        return None
    return context.cluster.lack("cpu_adam")


def cpu_adam_is_the_optimizer(plan: Plan, _: RuleContext) -> str | None:
    """DeepSpeed has one optimizer for offloaded states.

    Source:
        deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.8): DeepSpeedCPUAdam.
    """
    offloaded = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    if not offloaded or plan.optimizer == "adamw_fused":
        return None
    return (
        "DeepSpeed updates offloaded states with its own CPU Adam: optimizer must be adamw_fused,"
        f" but is {plan.optimizer}"
    )


def pinning_needs_cuda(plan: Plan, context: RuleContext) -> str | None:
    """Page-locked memory speeds up copies to a GPU."""
    if not plan.pin_memory or context.cluster.device != "cpu":
        return None
    return "pin_memory is for copies to a GPU, but the ranks run on CPUs"
