"""Rules about state in host memory or on NVMe."""

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def fsdp_offloads_all_to_the_host(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 has one offload policy, for all state.

    Source:
        torch.distributed.fsdp (2.13): CPUOffloadPolicy, for parameters, gradients and optimizer
        states.
    """
    if plan.engine != "torch":
        return None
    if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
        return f"engine {plan.engine} offloads only to cpu; nvme needs engine deepspeed"
    if plan.offload_optimizer == plan.offload_parameters:
        return None
    return (
        "FSDP2 offloads weights, gradients and optimizer states together: offload_optimizer"
        f" ({plan.offload_optimizer}) and offload_parameters ({plan.offload_parameters}) must be"
        " equal"
    )


def parameters_and_nvme_need_zero_three(plan: Plan, _: RuleContext) -> str | None:
    """Only ZeRO-3 fetches weights when they are needed, and keeps states on a drive.

    Below stage 3, DeepSpeed accepts `nvme` but keeps the states in host memory.

    Source:
        deepspeed/runtime/zero/offload_config.py (0.19.8): "Valid only with stage 3";
        stage_1_and_2.py has no NVMe support, only `cpu_offload`.
    """
    if plan.engine != "deepspeed" or plan.zero_stage == 3:
        return None
    if plan.offload_optimizer == "nvme":
        return (
            "DeepSpeed moves optimizer states to NVMe only at zero_stage 3; at zero_stage"
            f" {plan.zero_stage}, nvme would mean cpu"
        )
    if plan.offload_parameters == "none":
        return None
    return (
        f"DeepSpeed offloads parameters only at zero_stage 3, but offload_parameters is"
        f" {plan.offload_parameters} at zero_stage {plan.zero_stage}"
    )


def nvme_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed's NVMe extension needs libaio; only the user knows the drive's mount point."""
    if "nvme" not in (plan.offload_optimizer, plan.offload_parameters):
        return None
    if context.spec.cluster.nvme_folder:
        return context.cluster.lack("nvme")
    return "offload to nvme needs cluster.nvme_folder, a folder on each node's drive"


def cpu_adam_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed has one optimizer for offloaded states, an extension that must be compiled.

    Source:
        deepspeed/runtime/zero/stage3.py and stage_1_and_2.py (0.19.8): DeepSpeedCPUAdam.
    """
    if plan.engine != "deepspeed" or plan.offload_optimizer == "none":
        return None
    lack = context.cluster.lack("cpu_adam")
    if lack or plan.optimizer == "adamw_fused":
        return lack
    return (
        "DeepSpeed updates offloaded states with its own CPU Adam: optimizer must be adamw_fused,"
        f" but is {plan.optimizer}"
    )
