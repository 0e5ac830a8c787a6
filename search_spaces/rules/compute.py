"""Rules about the computation of a step: engine, attention, recomputation, optimizer, loader."""

from typing import get_args

from search_spaces.facts import SAME_OUTPUTS, Recomputation, share_words
from search_spaces.hardware.device import Device
from search_spaces.knobs.search_defaults import CHECKPOINT_RATIOS, implementations
from search_spaces.plan import AdamW, Loss, Optimizer, Plan
from search_spaces.rules.base import RuleContext
from search_spaces.settings.blocks import checkpointed_blocks

_LEAST_IN_FLOAT8 = 0.5  # of a block's parameters
_EIGHT_BIT = ("adamw_8bit", "adamw_8bit_paged")


def deepspeed_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed is optional, and needs fp16 support of the device; torch's autocast does not."""
    if plan.engine != "deepspeed":
        return None
    lack = context.cluster.lack
    return lack("deepspeed") or (lack("deepspeed_fp16") if plan.precision == "fp16" else None)


def attention_is_offered(plan: Plan, context: RuleContext) -> str | None:
    """The architecture must implement the attention of the plan."""
    if plan.attention in context.model.attentions:
        return None
    offered = ", ".join(context.model.attentions) or "none by name"
    return f"{context.model.architecture} has no {plan.attention} attention; it has {offered}"


def attention_keeps_the_loss(plan: Plan, context: RuleContext) -> str | None:
    """Implementations of attention must be one function; where they are not, only one is used."""
    model, named = context.model, context.spec.space.attention
    differences = dict(model.attention_differences)
    reference = named[0] if named else model.attentions[0]
    if plan.attention == reference:
        return None
    difference = max(differences.get(name, 0.0) for name in (plan.attention, reference))
    if difference <= SAME_OUTPUTS:
        return None
    return (
        f"attention {plan.attention} of {model.architecture} computes other outputs than"
        f" {reference}: they differ by up to {share_words(difference)}"
    )


def attention_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """Flash attention is an optional dependency, and runs only on GPUs in 16 bits.

    Source:
        https://github.com/Dao-AILab/flash-attention#cuda-support: "fp16 and bf16".
    """
    lack = context.cluster.lack(plan.attention)
    if lack or plan.precision != "fp32" or not plan.attention.startswith("flash"):
        return lack
    return f"{plan.attention} needs precision bf16 or fp16, but precision is fp32"


def kernel_refusals(gpu: Device) -> tuple[tuple[str, str], ...]:
    """Returns the reasons against kernels for some GPUs only: see `ClusterFacts.lacks`.

    Source:
        https://github.com/Dao-AILab/flash-attention#cuda-support: "Ampere, Ada, or Hopper GPUs" for
        the second generation, "H100 / H800 GPU" for the third.
    """
    refusals = []
    if not gpu.bf16_flops_per_second:
        refusals.append(("flash_attention_2", "flash_attention_2 needs an Ampere or newer GPU"))
    if gpu.architecture != "hopper":
        refusals.append(("flash_attention_3", "flash_attention_3 needs a Hopper GPU"))
    if not gpu.fp8_flops_per_second:
        refusals.append(("float8", "float8 needs an Ada, Hopper or newer GPU"))
    return tuple(refusals)


def compile_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """Compilation needs a compiler for the device, and takes effect where a module is called.

    Source:
        torch/nn/modules/module.py (2.13): `compile` replaces `_call_impl`, not `forward`.
    """
    lack = context.cluster.lack("compile") if plan.compile else None
    if lack or not (plan.compile and context.model.bypasses_hooks):
        return lack
    return (
        f"{context.model.architecture} calls the forward method of its blocks directly, which"
        " torch.compile does not replace: compile must be false"
    )


def float8_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """Linear layers are torchao's, of whole weights, which compute in 8 bits what bf16 would.

    Products of other parts stay in bf16, among them those of experts in a mixture: if these are the
    most of a block, nothing is gained.

    Source:
        torchao/float8/README.md (0.18); `torch._scaled_mm`, whose sizes must divide 16.
    """
    if plan.float8 == "none":
        return None
    needed = {"engine": "torch", "precision": "bf16", "tensor": 1}
    for name, value in needed.items():
        if (found := getattr(plan, name)) != value:
            return f"float8 {plan.float8} needs {name} {value}, but it is {found}"
    if context.spec.train.method == "lora":
        return f"float8 {plan.float8} is for training all weights, not adapters"
    if (share := context.model.float8_share) < _LEAST_IN_FLOAT8:
        return (
            f"float8 {plan.float8}: linear layers with sizes that divide 16 have"
            f" {share_words(share)} of the parameters of {context.model.name}'s blocks"
        )
    return context.cluster.lack("float8")


def budget_is_the_only_recomputation(plan: Plan, _: RuleContext) -> str | None:
    """A compiler with a budget chooses alone what a whole block on a rank recomputes."""
    if plan.checkpoint_budget == 1:
        return None
    for name, value in (("checkpoint_ratio", 0), ("tensor", 1)):
        if (found := getattr(plan, name)) != value:
            return f"checkpoint_budget below 1 needs {name} {value}, but it is {found:g}"
    return None


def loss_can_be_replaced(plan: Plan, context: RuleContext) -> str | None:
    """The loss must be the mean cross entropy of the head's own outputs, on one rank.

    Tensor ranks split the vocabulary, of which each then has a part of every sum.
    """
    reason, knob = context.model.loss_refusal, _of_head(plan.loss, plan.vocab_multiple)
    if knob and reason:
        return f"{knob}: {reason}"
    if not knob or plan.tensor == 1:
        return None
    return f"{knob} needs the whole head on a rank: tensor must be 1, not {plan.tensor}"


def _of_head(loss: Loss, multiple: int) -> str:
    """Returns the knob that has the head compute the loss, empty if the model does."""
    padded = f"vocab_multiple {multiple}" if multiple > 1 else ""
    return padded if loss == "whole" else f"loss {loss}"


def vocab_multiple_is_distinct(plan: Plan, context: RuleContext) -> str | None:
    """Multiples that pad the vocabulary to the same words are one plan; the least stays."""
    words, least = context.model.vocab_size, plan.vocab_multiple
    if least == 1 or not words:
        return None
    padded = words + -words % plan.vocab_multiple
    others = {1, *(context.spec.space.vocab_multiple or ())}
    same = [one for one in others if one < least and words + -words % one == padded]
    if not same:
        return None
    return f"vocab_multiple {least} pads {words:,} words to {padded:,}, the same as {min(same)}"


def mlp_can_be_tiled(plan: Plan, context: RuleContext) -> str | None:
    """The MLP of a block must compute each token alone."""
    reason = context.model.tile_refusal
    return f"mlp_tiles {plan.mlp_tiles}: {reason}" if plan.mlp_tiles > 1 and reason else None


def experts_kernel_can_be_set(plan: Plan, context: RuleContext) -> str | None:
    """Kernels of experts are transformers', for layers that it decorates.

    Source:
        transformers/integrations/moe.py: use_experts_implementation (5.23).
    """
    experts = context.model.experts
    if plan.experts_kernel == "grouped_mm" or (experts and experts.kernels):
        return None
    return (
        f"experts_kernel {plan.experts_kernel}: {context.model.name} has no experts of which"
        " transformers has several kernels"
    )


def tiles_are_recomputed_alone(plan: Plan, _: RuleContext) -> str | None:
    """Tiles are recomputed in backward, which others may not decide too.

    Tensor ranks would exchange each tile apart, and once more as it is recomputed. Selective
    recomputation would keep the products of all tiles. A compiler chooses what a block recomputes.
    """
    if plan.mlp_tiles == 1:
        return None
    needed: dict[str, object] = {"tensor": 1, "compile": False}
    if plan.checkpoint_ratio > 0:
        needed |= {"checkpoint_mode": "full", "selective_blocks": 0}
    for name, value in needed.items():
        if (found := getattr(plan, name)) != value:
            words = f"{value}, but is {found}".lower()
            return f"mlp_tiles {plan.mlp_tiles} are recomputed one by one: {name} must be {words}"
    return None


def loss_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """The loss is compiled where blocks are; Liger's kernel is optional, and runs only on GPUs.

    Source:
        github.com/linkedin/Liger-Kernel: LigerFusedLinearCrossEntropyLoss.
    """
    if plan.loss == "compiled" and not plan.compile:
        return "loss compiled needs compile true, but compile is false"
    return context.cluster.lack("fused_loss") if plan.loss == "fused" else None


def eight_bit_can_be_used(plan: Plan, context: RuleContext) -> str | None:
    """The 8-bit optimizers are an optional dependency, and pages are CUDA's managed memory.

    On a CPU the library makes plain states.

    Source:
        bitsandbytes/optim/optimizer.py (0.50): `get_state_buffer`.
    """
    if plan.optimizer not in _EIGHT_BIT:
        return None
    lack = context.cluster.lack("eight_bit")
    if lack or plan.optimizer == "adamw_8bit" or context.cluster.device != "cpu":
        return lack
    return (
        "adamw_8bit_paged moves its states to the memory of a GPU and back; on a CPU use adamw_8bit"
    )


def optimizer_is_specified(plan: Plan, context: RuleContext) -> str | None:
    """The knob chooses an implementation of the specified optimizer, never another one."""
    allowed = implementations(context.spec.train.optimizer)
    if plan.optimizer in allowed:
        return None
    return (
        f"train.optimizer is {context.spec.train.optimizer}: optimizer must be"
        f" {' or '.join(allowed)}, but is {plan.optimizer}"
    )


def optimizer_fits_engine(plan: Plan, context: RuleContext) -> str | None:
    """Some optimizers need whole weights, or the names of a whole model.

    8-bit states are scaled block by block, which also works within a rank's shard of a weight;
    DeepSpeed flattens weights that need separate scales into one vector. Adafactor keeps means over
    rows and columns of whole weights, which torch's implementation cannot compute from shards.
    Muon orthogonalizes whole matrices. A user's own is taken for one that updates each element
    alone if its class is known to.

    Source:
        Dettmers et al. 2021, arXiv:2110.02861 (block-wise quantisation); torch.optim.Adafactor,
        whose in-place square of a norm has no strategy in DTensor (torch 2.13).
    """
    if plan.optimizer in ("adamw_fused", "adamw_foreach", "sgd", "lion"):
        return None
    if plan.engine != "torch":
        return f"optimizer {plan.optimizer} needs engine torch, but engine is {plan.engine}"
    if plan.optimizer in ("muon", "custom") and plan.pipeline > 1:
        return (
            f"optimizer {plan.optimizer} needs the names of a whole model: pipeline must be 1, but"
            f" is {plan.pipeline}"
        )
    shards = plan.optimizer == "custom" and context.model.optimizer.elementwise
    whole = (plan.zero_stage == 0 or shards) and plan.tensor == 1
    if plan.optimizer in _EIGHT_BIT or whole:
        return None
    return (
        f"optimizer {plan.optimizer} needs whole weights: zero_stage must be 0 and tensor 1,"
        f" but they are {plan.zero_stage} and {plan.tensor}"
    )


def bf16_states_are_trained_whole(plan: Plan, context: RuleContext) -> str | None:
    """Weights in bf16 are what a step computes with, and what its gradients are reduced in.

    DeepSpeed holds master weights and moments so only where ZeRO shards them. Its optimizer on the
    host would need another call than that of fp32 moments.

    Source:
        deepspeed/runtime/config.py (0.19.8): `bf16_master_weights_and_grads`,
        `bf16_optimizer_states`; base_optimizer.py: `_configure_master_weights`.
    """
    if plan.states == "fp32":
        return None
    if context.spec.train.method == "lora":
        return f"states {plan.states} are for training all weights: see train.lora.base for LoRA"
    needed: dict[str, tuple[object, ...]] = {"precision": ("bf16",)}
    if plan.engine == "deepspeed":
        needed |= {"states": ("bf16",), "zero_stage": (1, 2, 3), "offload_optimizer": ("none",)}
    for name, values in needed.items():
        if (found := getattr(plan, name)) not in values:
            words = f"{' or '.join(map(str, values))}, but is {found}"
            return f"states {plan.states} with engine {plan.engine}: {name} must be {words}"
    return None


def bf16_states_fit_optimizer(plan: Plan, context: RuleContext) -> str | None:
    """Only optimizers that update each element alone were compared with a plain loop in bf16.

    Stochastic rounding is that of torchao's AdamW, an optional dependency, which needs a compiler.

    Source:
        torchao/optim/adam.py (0.18): `_AdamW`, which its package does not call public.
    """
    allowed: tuple[Optimizer, ...] = (*get_args(AdamW), "sgd", "lion")
    if plan.states == "bf16_stochastic":
        if lack := context.cluster.lack("stochastic"):
            return lack
        allowed = ("adamw_fused",)
    if plan.states == "fp32" or plan.optimizer in allowed:
        return None
    words = " or ".join(allowed)
    return f"states {plan.states} need optimizer {words}, but it is {plan.optimizer}"


def checkpointing_needs_blocks(plan: Plan, context: RuleContext) -> str | None:
    """Recomputation wraps repeated blocks, so the model must have some."""
    if plan.checkpoint_ratio == 0 or context.model.blocks:
        return None
    return f"{context.model.name} has no repeated blocks to recompute"


def checkpoint_ratio_is_distinct(plan: Plan, context: RuleContext) -> str | None:
    """Ratios that recompute the same number of blocks are one plan; the nearest ratio stays."""
    ratio, blocks = plan.checkpoint_ratio, context.model.blocks
    searched = context.spec.space.checkpoint_ratio or CHECKPOINT_RATIOS
    if not blocks or ratio not in searched:
        return None
    count = checkpointed_blocks(ratio, blocks)
    same = [other for other in searched if checkpointed_blocks(other, blocks) == count]
    nearest = min(same, key=lambda other: (abs(other * blocks - count), other))
    if ratio == nearest:
        return None
    return (
        f"checkpoint_ratio {ratio:g} recomputes {count} of {blocks} blocks, the same as {nearest:g}"
    )


def mixed_blocks_are_distinct(plan: Plan, context: RuleContext) -> str | None:
    """Each recomputed block is in one of three ways, and not all of them in the same."""
    selective, offloaded = plan.selective_blocks, plan.offloaded_blocks
    count = checkpointed_blocks(plan.checkpoint_ratio, context.model.blocks)
    for name, chosen, whole in (
        ("selective_blocks", selective, "checkpoint_mode selective"),
        ("offloaded_blocks", offloaded, "checkpoint_offload"),
    ):
        if chosen and chosen == count:
            return f"{name} {chosen} are all recomputed blocks, the same as {whole}"
    if selective + offloaded <= count:
        return None
    return (
        f"checkpoint_ratio {plan.checkpoint_ratio:g} recomputes {count} blocks, fewer than"
        f" selective_blocks {selective} and offloaded_blocks {offloaded} together"
    )


def training_step_runs(_: Plan, context: RuleContext) -> str | None:
    """A step that fails on this machine's CPU would fail in every trial on CPUs."""
    step = context.model.step
    if step is None or not step.fails or context.cluster.device != "cpu":
        return None
    return f"each trial would end with {step.not_probed}"


def recomputation_keeps_the_gradient(plan: Plan, context: RuleContext) -> str | None:
    """A recomputed block must compute what it computed: its own state may have changed since."""
    step = context.model.step
    if step is None or not plan.checkpoint_ratio or step.recomputation is Recomputation.SAME:
        return None
    if step.recomputation is Recomputation.FAILS:
        return f"{context.model.architecture} fails when its blocks are recomputed"
    state = f", which changes {', '.join(step.changed_state[:3])}" if step.changed_state else ""
    return (
        f"recomputing blocks of {context.model.architecture} changes the gradient, because each"
        f" forward pass changes state that the next one reads{state}"
    )


def checkpoint_offload_is_not_compiled(plan: Plan, _: RuleContext) -> str | None:
    """A compiled block saves its weights for backward too, so they would be moved as well."""
    if not ((plan.checkpoint_offload or plan.offloaded_blocks) and plan.compile):
        return None
    return (
        "checkpoint_offload would also move the weights that a compiled block saves:"
        " compile must be false"
    )


def zero_3_compiles_no_selective_recomputation(plan: Plan, _: RuleContext) -> str | None:
    """ZeRO-3 adds each bias to the product in place, and once more to the saved product.

    If blocks are not compiled, the worker copies saved products before they change.

    Source:
        deepspeed/runtime/zero/linear.py, LinearFunctionForZeroStage3.forward (0.19.8): losses
        drift by 3e-4 within ten steps.
    """
    is_zero_3 = plan.engine == "deepspeed" and plan.zero_stage == 3
    selective = plan.checkpoint_mode == "selective" or plan.selective_blocks > 0
    if not (is_zero_3 and plan.compile and selective):
        return None
    return (
        "compiled selective recomputation with DeepSpeed's ZeRO-3 adds biases twice:"
        " compile must be false, or checkpoint_mode full"
    )
