"""Rules about adapters, and the frozen weights beside them."""

from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.specification.sections import QUANTIZED


def tensor_trains_all_weights(plan: Plan, context: RuleContext) -> str | None:
    """Adapters are not split along with their projections."""
    if plan.tensor == 1 or context.spec.train.method == "full":
        return None
    return (
        f"train.method {context.spec.train.method}: adapters are not split, so tensor must be 1,"
        f" but is {plan.tensor}"
    )


def quantized_weights_fit(plan: Plan, context: RuleContext) -> str | None:
    """Packed weights have scales of their own, which neither FSDP2 nor ZeRO-3 splits with them.

    Compiled blocks have not been shown to train with them.

    Source:
        bitsandbytes/nn/modules.py (0.50): `quant_state` is an attribute of the whole weight.
    """
    base = context.model.base
    if base not in QUANTIZED:
        return None
    if lack := context.cluster.lack("eight_bit"):
        return f"frozen weights in {base}: {lack}"
    if plan.compile:
        return f"blocks with frozen weights in {base} are not compiled: compile must be false"
    if plan.zero_stage < (2 if plan.engine == "torch" else 3):
        return None
    return (
        f"zero_stage {plan.zero_stage} of engine {plan.engine} splits weights, and frozen ones in"
        f" {base} cannot be split: train.lora.base must be bf16"
    )


def frozen_weights_have_their_precision(plan: Plan, context: RuleContext) -> str | None:
    """A 16-bit product takes fp32 weights by autocast, an fp32 one takes no 16-bit weights.

    Source:
        deepspeed/runtime/engine.py (0.19.8): bf16 and fp16 cast the whole module.
    """
    base = context.model.base
    if plan.precision == "fp32" and base not in (None, "fp32"):
        return f"precision fp32 cannot compute with frozen weights in {base} (train.lora.base)"
    if plan.precision == "fp32" or plan.engine == "torch" or base != "fp32":
        return None
    return (
        f"engine deepspeed holds all weights in {plan.precision}, and train.lora.base is fp32:"
        " it must be bf16, or engine torch"
    )
