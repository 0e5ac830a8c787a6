"""How a step is computed: engine, attention, compilation, optimizer."""

from __future__ import annotations

from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.settings.render import checkpointed_blocks


def deepspeed_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """It may be missing where the package was installed without its dependencies."""
    return around.cluster.lack("deepspeed") if plan.engine == "deepspeed" else None


def deepspeed_can_use_fp16(plan: Plan, around: RuleContext) -> str | None:
    """DeepSpeed asks the device whether it has fp16; torch's autocast does without."""
    if plan.engine != "deepspeed" or plan.precision != "fp16":
        return None
    return around.cluster.lack("deepspeed_fp16")


def attention_is_offered(plan: Plan, around: RuleContext) -> str | None:
    """The architecture must implement the attention that is asked for."""
    if plan.attention in around.model.attentions:
        return None
    offered = ", ".join(around.model.attentions) or "none by name"
    return f"{around.model.architecture} has no {plan.attention} attention, it has {offered}"


def attention_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """Flash attention is an optional package, and runs on GPUs alone."""
    return around.cluster.lack(plan.attention)


def flash_needs_sixteen_bits(plan: Plan, _: RuleContext) -> str | None:
    """Its kernels take no fp32.

    Source:
        https://github.com/Dao-AILab/flash-attention#cuda-support: "fp16 and bf16".
    """
    if plan.precision != "fp32" or not plan.attention.startswith("flash"):
        return None
    return f"{plan.attention} computes in bf16 or fp16, precision is fp32"


def compile_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """It needs a compiler for the device."""
    return around.cluster.lack("compile") if plan.compile else None


def model_compiles(plan: Plan, around: RuleContext) -> str | None:
    """The blocks must compile to what they compute."""
    return around.model.compile_refusal if plan.compile else None


def eight_bit_can_be_used(plan: Plan, around: RuleContext) -> str | None:
    """8-bit states come with an optional package."""
    return around.cluster.lack("eight_bit") if plan.optimizer == "adamw_8bit" else None


def optimizer_fits_engine(plan: Plan, _: RuleContext) -> str | None:
    """Lossy optimizers keep states of other shapes than their weights.

    8-bit states are scaled block by block, also within what a rank holds of a weight; DeepSpeed
    makes one flat vector of weights that are scaled apart. Adafactor keeps means over rows and
    columns of whole weights, which torch's cannot take of shards.

    Source:
        Dettmers et al. 2021, arXiv:2110.02861 (block-wise quantisation); torch.optim.Adafactor,
        whose in-place square of a norm has no strategy in DTensor (torch 2.13).
    """
    if plan.optimizer in ("adamw_fused", "adamw_foreach"):
        return None
    if plan.engine != "torch":
        return f"optimizer {plan.optimizer} needs engine torch, engine is {plan.engine}"
    if plan.optimizer == "adamw_8bit" or (plan.zero_stage == 0 and plan.tensor == 1):
        return None
    return (
        f"optimizer {plan.optimizer} looks at whole weights: it needs zero_stage 0 and tensor 1,"
        f" and has {plan.zero_stage} and {plan.tensor}"
    )


def checkpointing_needs_blocks(plan: Plan, around: RuleContext) -> str | None:
    """Recomputation wraps repeated blocks; a model without any cannot be checkpointed so."""
    if plan.checkpoint_ratio == 0 or around.model.blocks:
        return None
    return f"{around.model.name} has no repeated blocks to recompute"


def checkpoint_ratio_is_distinct(plan: Plan, around: RuleContext) -> str | None:
    """Two ratios that recompute the same number of blocks are one plan, measured twice."""
    ratio, blocks = plan.checkpoint_ratio, around.model.blocks
    searched = around.spec.space.checkpoint_ratio or CHECKPOINT_RATIOS
    if not blocks or ratio not in searched:
        return None
    count = checkpointed_blocks(ratio, blocks)
    same = [other for other in searched if checkpointed_blocks(other, blocks) == count]
    kept = min(same, key=lambda other: (abs(other * blocks - count), other))
    if ratio == kept:
        return None
    return f"checkpoint_ratio {ratio:g} recomputes {count} of {blocks} blocks, as {kept:g} does"


def checkpoint_offload_is_not_compiled(plan: Plan, _: RuleContext) -> str | None:
    """A compiled block saves its weights with what backward needs: they would be moved as well."""
    if not (plan.checkpoint_offload and plan.compile):
        return None
    return (
        "checkpoint_offload moves what a compiled block saves, its weights too:"
        " compile must be false"
    )


def zero_3_compiles_no_selective_recomputation(plan: Plan, _: RuleContext) -> str | None:
    """ZeRO-3 adds each bias to the product in place, and to the kept product once more.

    Where blocks are not compiled, the worker copies what is kept before it is changed.

    Source:
        deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3.forward (0.19.8): losses
        drift away by 3e-4 in ten steps.
    """
    is_zero_3 = plan.engine == "deepspeed" and plan.zero_stage == 3
    if not (is_zero_3 and plan.compile and plan.checkpoint_mode == "selective"):
        return None
    return (
        "compiled, selective recomputation under DeepSpeed's ZeRO-3 adds biases twice:"
        " compile must be false, or checkpoint_mode full"
    )


_OF_DEVICE = {"expandable_segments": "cuda", "max_split": "cuda", "mmap": "cpu"}


def allocator_fits_device(plan: Plan, around: RuleContext) -> str | None:
    """Settings of torch's CUDA allocator say nothing to malloc, and the other way round."""
    needed, device = _OF_DEVICE.get(plan.allocator), around.cluster.device
    if needed is None or device in (needed, "auto"):
        return None
    return f"allocator {plan.allocator} is for {needed}, the ranks are on {device}"


def loader_pinning_needs_cuda(plan: Plan, around: RuleContext) -> str | None:
    """Page-locked memory is what a GPU copies from."""
    if not plan.loader_pin_memory or around.cluster.device != "cpu":
        return None
    return "loader_pin_memory is for copies to a GPU, the ranks are CPUs"
