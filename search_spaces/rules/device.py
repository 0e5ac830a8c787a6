"""Rules about features that ranks or their devices may lack."""

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext


def pinning_needs_cuda(plan: Plan, context: RuleContext) -> str | None:
    """Page-locked memory speeds up copies to a GPU."""
    if not (plan.pin_memory or plan.loader_pin_memory) or context.cluster.device != "cpu":
        return None
    name = "pin_memory" if plan.pin_memory else "loader_pin_memory"
    return f"{name} is for copies to a GPU, but the ranks run on CPUs"


_ALLOCATOR_DEVICES = {"expandable_segments": "cuda", "max_split": "cuda", "mmap": "cpu"}


def allocator_fits_device(plan: Plan, context: RuleContext) -> str | None:
    """Settings of torch's CUDA allocator have no effect on malloc, and vice versa."""
    needed, device = _ALLOCATOR_DEVICES.get(plan.allocator), context.cluster.device
    if needed is None or device in (needed, "auto"):
        return None
    return f"allocator {plan.allocator} is for {needed}, but the ranks run on {device}"


def device_has_the_features(plan: Plan, context: RuleContext) -> str | None:
    """A TPU has no part of some features, and others have not been shown to work on one.

    Source:
        torch_tpu 0.2.0: `ProcessGroupTpu` refuses "asymmetric output buffer sizes across ranks".
    """
    if context.cluster.device != "tpu":
        return None
    offloads = {plan.offload_optimizer, plan.offload_parameters} != {"none"}
    uses = {
        "fp16": plan.precision == "fp16",
        "expert_ranks": plan.experts > 1,
        "offload": offloads or plan.checkpoint_offload or plan.offloaded_blocks > 0,
        "pinning": plan.pin_memory or plan.loader_pin_memory,
        "compile_mode": plan.compile_mode != "default",
    }
    return next(filter(None, (context.cluster.lack(name) for name in uses if uses[name])), None)
