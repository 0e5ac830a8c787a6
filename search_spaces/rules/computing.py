"""How a step is computed: engine, attention, compilation, optimizer."""

from __future__ import annotations

from search_spaces.plan import Plan
from search_spaces.rules.base import Rule, Surroundings


def deepspeed_can_be_used(plan: Plan, around: Surroundings) -> str | None:
    """It may be missing where the package was installed without its dependencies."""
    return around.cluster.lack("deepspeed") if plan.engine == "deepspeed" else None


def deepspeed_can_use_fp16(plan: Plan, around: Surroundings) -> str | None:
    """DeepSpeed asks the device whether it has fp16; torch's autocast does without."""
    if plan.engine != "deepspeed" or plan.precision != "fp16":
        return None
    return around.cluster.lack("deepspeed_fp16")


def attention_is_offered(plan: Plan, around: Surroundings) -> str | None:
    """The architecture must implement the attention that is asked for."""
    if plan.attention in around.model.attentions:
        return None
    offered = ", ".join(around.model.attentions) or "none by name"
    return f"{around.model.architecture} has no {plan.attention} attention, it has {offered}"


def attention_can_be_used(plan: Plan, around: Surroundings) -> str | None:
    """Flash attention is an optional package, and runs on GPUs alone."""
    return around.cluster.lack(plan.attention)


def flash_needs_sixteen_bits(plan: Plan, _: Surroundings) -> str | None:
    """Its kernels take no fp32.

    Source:
        https://github.com/Dao-AILab/flash-attention#cuda-support: "fp16 and bf16".
    """
    if plan.precision != "fp32" or not plan.attention.startswith("flash"):
        return None
    return f"{plan.attention} computes in bf16 or fp16, precision is fp32"


def compile_can_be_used(plan: Plan, around: Surroundings) -> str | None:
    """It needs a compiler for the device."""
    return around.cluster.lack("compile") if plan.compile else None


def model_compiles(plan: Plan, around: Surroundings) -> str | None:
    """The blocks must compile to what they compute."""
    return around.model.compile_refusal if plan.compile else None


def eight_bit_can_be_used(plan: Plan, around: Surroundings) -> str | None:
    """8-bit states come with an optional package."""
    return around.cluster.lack("eight_bit") if plan.optimizer == "adamw_8bit" else None


def optimizer_fits_engine(plan: Plan, _: Surroundings) -> str | None:
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


RULES: tuple[Rule, ...] = (
    deepspeed_can_be_used,
    deepspeed_can_use_fp16,
    attention_is_offered,
    attention_can_be_used,
    flash_needs_sixteen_bits,
    compile_can_be_used,
    model_compiles,
    eight_bit_can_be_used,
    optimizer_fits_engine,
)
