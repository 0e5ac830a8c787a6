"""Rules about ranks, tensor and sequence parallelism, pipeline stages and batches."""

from search_spaces import facts
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.settings.schedules import SCHEDULES


def cluster_has_room(plan: Plan, context: RuleContext) -> str | None:
    """Ray Train would wait forever for a worker group that cannot fit in the cluster."""
    slots = context.cluster.slots
    ranks = plan.tensor * plan.pipeline * plan.data
    return None if ranks <= slots else f"needs {ranks} ranks, but the cluster has room for {slots}"


def tensor_and_pipeline_need_torch(plan: Plan, _: RuleContext) -> str | None:
    """DeepSpeed cannot pipeline an ordinary module, and its AutoTP is not used.

    Source:
        deepspeed/runtime/pipe/module.py: models must be written as a list of layers.
    """
    for name, degree in (("tensor", plan.tensor), ("pipeline", plan.pipeline)):
        if degree > 1 and plan.engine != "torch":
            return f"{name} {degree} needs engine torch, but engine is {plan.engine}"
    return None


def tensor_stays_inside_a_node(plan: Plan, context: RuleContext) -> str | None:
    """Tensor ranks exchange activations in every block, too often for links between nodes.

    Source:
        Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters,
        section 3.2: tensor parallelism up to the GPUs of a node, pipelines across nodes.
    """
    slots = context.cluster.node_slots
    if slots is None or plan.tensor <= slots:
        return None
    return f"tensor {plan.tensor} exceeds the {slots} ranks that fit on one node"


def tensor_divides(plan: Plan, context: RuleContext) -> str | None:
    """A plan must split the projections, with whole heads and hidden units on each tensor rank."""
    if plan.tensor == 1:
        return None
    if reason := context.model.tensor.refusal:
        return f"tensor {plan.tensor}: {reason}"
    for name, count in context.model.tensor.divisors:
        if count % plan.tensor:
            return f"{name} {count} is not a multiple of tensor {plan.tensor}"
    return None


def sequence_can_be_split(plan: Plan, context: RuleContext) -> str | None:
    """Requires blocks that process each token independently between matmuls.

    Rows are padded to a multiple of the ranks, but not beyond the longest sample.
    """
    if not plan.sequence_parallel or plan.tensor == 1:
        return None
    if reason := context.model.tensor.sequence_refusal:
        return f"sequence_parallel: {reason}"
    length = context.spec.train.sequence_length
    if length % plan.tensor == 0:
        return None
    return (
        f"sequence_parallel: train.sequence_length {length} is not a multiple of tensor"
        f" {plan.tensor}"
    )


def pipeline_can_cut(plan: Plan, context: RuleContext) -> str | None:
    """A stage must be a run of blocks that pass on one stream of hidden states.

    Some schedules have two stages per rank.
    """
    model = context.model
    if plan.pipeline == 1:
        return None
    if model.pipeline_refusal:
        return f"pipeline {plan.pipeline}: {model.pipeline_refusal}"
    stages = plan.pipeline * SCHEDULES[plan.pipeline_schedule].stages_per_rank
    if stages <= model.blocks:
        return None
    return (
        f"pipeline {plan.pipeline} with schedule {plan.pipeline_schedule} needs {stages} stages,"
        f" but {model.name} has {model.blocks} blocks"
    )


def pipeline_is_filled(plan: Plan, _: RuleContext) -> str | None:
    """Some schedules warm up with one micro-batch per stage.

    ZB-V runs with fewer, and then waits as others do.

    Source:
        torch/distributed/pipelining/schedules.py, Schedule1F1B.__init__ and
        ScheduleDualPipeV.__init__ (torch 2.13).
    """
    needed = SCHEDULES[plan.pipeline_schedule].fill * plan.pipeline
    if plan.pipeline == 1 or plan.accumulation >= needed:
        return None
    return (
        f"schedule {plan.pipeline_schedule} with pipeline {plan.pipeline} needs one micro-batch per"
        f" stage, {needed} in all, but accumulation is {plan.accumulation}"
    )


def interleaving_has_whole_rounds(plan: Plan, _: RuleContext) -> str | None:
    """Interleaved schedules process micro-batches in rounds of equal size.

    Source:
        torch/distributed/pipelining/schedules.py, ScheduleInterleaved1F1B.__init__ and
        ScheduleInterleavedZeroBubble.__init__ (torch 2.13).
    """
    if plan.pipeline_schedule not in ("interleaved", "interleaved_zero_bubble"):
        return None
    rounds = max(1, plan.accumulation // plan.pipeline)
    if plan.accumulation % rounds == 0:
        return None
    return (
        f"schedule {plan.pipeline_schedule} with pipeline {plan.pipeline} needs {rounds} rounds of"
        f" equal size, but accumulation {plan.accumulation} is not a multiple of {rounds}"
    )


def split_backward_is_plain(plan: Plan, _: RuleContext) -> str | None:
    """A backward pass that is split needs everything that forward saved, for weight gradients too.

    They are computed by one call of autograd for each group of weights, which would recompute a
    whole block each time, and a loss that is not whole once only. FSDP2 frees and reduces a
    block's weights when the gradients of its inputs are there, before those of its weights are.

    Source:
        torch/distributed/pipelining/_backward.py, stage_backward_weight, and schedules.py,
        _check_torch_compile_compatibility (torch 2.13).
    """
    if plan.pipeline == 1 or not SCHEDULES[plan.pipeline_schedule].splits_backward:
        return None
    needed = {"zero_stage": 0, "checkpoint_ratio": 0.0, "compile": False, "loss": "whole"}
    for name, value in (needed | {"vocab_multiple": 1, "mlp_tiles": 1}).items():
        if (found := getattr(plan, name)) != value:
            return (
                f"schedule {plan.pipeline_schedule} splits the backward pass and supports only"
                f" {name} {_word(value)}, but it is {_word(found)}"
            )
    return None


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).lower()


def global_batch_is_kept(plan: Plan, context: RuleContext) -> str | None:
    """Every plan takes the same samples per optimizer step; else speeds would not be comparable."""
    global_batch = context.spec.train.global_batch
    if plan.data % plan.context:
        return f"data {plan.data} is not a multiple of context {plan.context}"
    samples = plan.micro_batch * plan.accumulation * plan.data // plan.context
    if samples == global_batch:
        return None
    shared = f" / context {plan.context}" if plan.context > 1 else ""
    return (
        f"micro_batch {plan.micro_batch} x accumulation {plan.accumulation} x data {plan.data}"
        f"{shared} is {samples}, but train.global_batch is {global_batch}"
    )


def context_divides_heads(plan: Plan, context: RuleContext) -> str | None:
    """Each context rank has equally many heads of attention, and as many tokens of each row.

    Source:
        Jacobs et al. 2023, arXiv:2309.14509: the degree of sequence parallelism divides the heads.
    """
    model, ranks = context.model, plan.context
    if ranks == 1:
        return None
    if model.context_refusal is not None:
        return f"context {ranks}: {model.context_refusal}"
    if model.attention_heads % ranks:
        return f"{model.attention_heads} attention heads are not a multiple of context {ranks}"
    if (length := context.spec.train.sequence_length) % ranks:
        return f"train.sequence_length {length} is not a multiple of context {ranks}"
    needed = {"engine": "torch", "tensor": 1, "pipeline": 1, "experts": 1, "compile": False}
    for name, value in needed.items():
        if (found := getattr(plan, name)) != value:
            return f"context {ranks} needs {name} {value}, but it is {found}"
    if plan.attention not in model.packing or plan.attention == "eager":
        return f"context {ranks} needs an attention that sees whole rows: sdpa or flash attention"
    return None


def packing_is_kept_apart(plan: Plan, context: RuleContext) -> str | None:
    """Packed samples must not attend to each other, which would change the training."""
    model = context.model
    if plan.batching != "packed" or plan.attention in model.packing:
        return None
    if model.packing:
        return f"{model.architecture} does not separate packed samples under {plan.attention}"
    return f"{model.architecture} does not separate packed samples by position ids"


def packing_is_read_by_stages(plan: Plan, _: RuleContext) -> str | None:
    """Flash attention takes the starts of packed samples, whose number differs by micro-batch.

    A pipeline needs micro-batches of one shape.
    """
    if plan.batching != "packed" or not plan.attention.startswith("flash") or plan.pipeline == 1:
        return None
    return f"{plan.attention} of packed samples needs pipeline 1, but pipeline is {plan.pipeline}"


def micro_batch_keeps_the_loss(plan: Plan, context: RuleContext) -> str | None:
    """The user sets the micro-batch if a sample's share of the loss depends on the others.

    It is then part of the training: `train.micro_batch`, or the only value of `space.micro_batch`.
    Other values are lossy. The batching must not change, nor the number of data ranks if state
    passes from one forward pass to the next.
    """
    model, space, smallest = context.model, context.spec.space, context.model.smallest_micro_batch
    own, depends = context.spec.train.micro_batch, model.batch_difference > facts.SAME_LOSS
    if own is None and not depends and smallest == 1:
        return None
    found = f"the loss of {model.architecture} depends on the micro-batch"
    if depends:
        found = f"the loss of {model.architecture} {_difference_words(model)}"
    if own is None and {*(space.micro_batch or ())} != {plan.micro_batch}:
        return (
            f"{found}: set train.micro_batch to the samples of a forward pass in your own"
            " training; other values in space.micro_batch are compared with it, as lossy"
        )
    if plan.micro_batch < smallest:
        return (
            f"{model.architecture} computes statistics over a micro-batch and fails with"
            f" {plan.micro_batch} sample: micro_batch must be {smallest} or more"
        )
    ranks = context.spec.baseline.get("data", 1)
    if model.step is not None and model.step.carries_state and plan.data != ranks:
        return f"{found}, and each rank runs its own: data must be that of baseline, {ranks}"
    if plan.micro_batch_tokens:
        return f"{found}: micro_batch_tokens must be 0, so that all have as many samples"
    batching = space.batching[0] if space.batching else "padded"
    if plan.batching == batching or plan.micro_batch == 1:
        return None
    return f"{found}, and batching {plan.batching} puts other samples together than {batching}"


def _difference_words(model: facts.ModelFacts) -> str:
    share, step = facts.share_words(model.batch_difference), model.step or facts.StepFindings()
    if step.carries_state and step.nearest is None:
        state = ", ".join(step.changed_state[:3]) or "what is in no buffer"
        return f"depends on the forward pass before, which changes {state}"
    if step.fit is facts.Fit.HIDDEN:
        return (
            "is a mean whose weights are not in the batch (return their sum as `targets`): the"
            f" loss of a batch is {share} off the mean of its parts"
        )
    if step.nearest is None:
        return f"for two samples is {share} off the mean of their losses"
    over = repr(step.nearest.key) if step.nearest.key else "samples"
    alone = " but among samples of one shape" if step.fit is facts.Fit.PADDING else ""
    return (
        f"is not a mean over samples, labels or an entry of the batch{alone}: the nearest, over"
        f" {over}, is {share} off"
    )


def padding_keeps_the_loss(plan: Plan, context: RuleContext) -> str | None:
    """Padding must not change the outputs for a sample."""
    model, data = context.model, context.spec.data
    longer = context.spec.train.sequence_length > model.padding_from
    if model.padding_difference <= facts.SAME_OUTPUTS or data.kind == "fixed" or not longer:
        return None
    if plan.micro_batch == 1 and not plan.sequence_parallel and plan.pad_multiple == 1:
        return None
    return (
        f"padding changes the outputs of {model.architecture} (by up to"
        f" {facts.share_words(model.padding_difference)}), so padded micro-batches would train"
        " another loss: use micro_batch 1 and pad_multiple 1, or samples of one length"
    )


def batching_needs_lengths(plan: Plan, context: RuleContext) -> str | None:
    """Samples of equal length need neither grouping nor packing."""
    if plan.batching == "padded" or context.spec.data.kind != "fixed":
        return None
    return f"batching {plan.batching} is the same as padded if all samples have the same length"


def tokens_limit_micro_batches(plan: Plan, context: RuleContext) -> str | None:
    """Micro-batches by tokens need samples of known lengths, and steps of any number of them.

    Source:
        torch/distributed/pipelining/schedules.py: `n_microbatches` is that of every step (2.13).
    """
    tokens, length = plan.micro_batch_tokens, context.spec.train.sequence_length
    if tokens == 0:
        return None
    if plan.pipeline > 1:
        return f"micro_batch_tokens {tokens}: a pipeline has the same micro-batches in every step"
    if context.model.vocab_size is None:
        return f"micro_batch_tokens {tokens}: {context.model.architecture} makes its own batches"
    if context.spec.data.kind == "fixed":
        return f"micro_batch_tokens {tokens}: if all samples have one length, micro_batch says it"
    if tokens < length:
        return f"micro_batch_tokens {tokens}: a sample may have {length} (train.sequence_length)"
    if tokens < (largest := plan.micro_batch * length):
        return None
    return f"micro_batch_tokens {tokens}: {plan.micro_batch} samples never have more than {largest}"


def pad_multiple_divides(plan: Plan, context: RuleContext) -> str | None:
    """Rows are padded to a multiple where they differ, but not beyond the sequence length."""
    multiple, length = plan.pad_multiple, context.spec.train.sequence_length
    if multiple == 1:
        return None
    if context.model.vocab_size is None:
        return f"pad_multiple {multiple}: {context.model.architecture} makes its own batches"
    if context.spec.data.kind == "fixed":
        return f"pad_multiple {multiple} is the same as 1 if all samples have the same length"
    if length % multiple == 0:
        return None
    return f"pad_multiple: train.sequence_length {length} is not a multiple of {multiple}"
