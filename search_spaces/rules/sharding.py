"""Rules about state that is sharded over data ranks: ZeRO and FSDP2."""

from search_spaces.facts import StepFindings
from search_spaces.plan import Plan
from search_spaces.rules.base import RuleContext
from search_spaces.settings.pipeline_partition import model_stages
from search_spaces.settings.schedules import SCHEDULES


def zero_one_needs_deepspeed(plan: Plan, _: RuleContext) -> str | None:
    """FSDP2 shards gradients and weights as well, so it has no stage 1.

    Source:
        torch.distributed.fsdp.fully_shard; ZeRO's stages: arXiv:1910.02054.
    """
    if plan.zero_stage != 1 or plan.engine != "torch":
        return None
    return (
        "engine torch shards states with FSDP2 (zero_stage 2 or 3); zero_stage 1 needs engine"
        " deepspeed"
    )


def sharding_needs_ranks(plan: Plan, _: RuleContext) -> str | None:
    """ZeRO over one rank shards nothing; DeepSpeed still needs it to offload."""
    if plan.zero_stage == 0 or plan.data > 1:
        return None
    offloads = {plan.offload_optimizer, plan.offload_parameters} != {"none"}
    if plan.engine == "deepspeed" and offloads:
        return None
    return f"zero_stage {plan.zero_stage} shards states over data ranks, but there is only one"


def fsdp_gathers_in_hooks(plan: Plan, context: RuleContext) -> str | None:
    """FSDP2 gathers the weights of a block in a hook of its forward pass.

    Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_state.py (2.13): `register_forward_pre_hook`.
    """
    sharded = plan.engine == "torch" and plan.zero_stage in (2, 3)
    if not (sharded and context.model.bypasses_hooks):
        return None
    return (
        f"{context.model.architecture} calls the forward method of its blocks directly, without the"
        f" hooks that gather FSDP2's weights: zero_stage {plan.zero_stage} needs engine deepspeed"
    )


def fsdp_groups_share_no_weights(plan: Plan, context: RuleContext) -> str | None:
    """FSDP2 gathers and frees the weights of each block apart from those of the others.

    Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_state.py (2.13): `_validate_no_duplicate_params`.
    """
    shared, sharded = context.model.shared_in_blocks, plan.zero_stage in (2, 3)
    if plan.engine != "torch" or not sharded or not shared:
        return None
    return (
        f"{' and '.join(shared[:2])} are one weight, which FSDP2 cannot gather with each of its"
        f" blocks: zero_stage {plan.zero_stage} needs engine deepspeed"
    )


def ranks_reduce_the_same_weights(plan: Plan, context: RuleContext) -> str | None:
    """Gradients are reduced in the order in which they come, which must be that of all ranks.

    DDP alone asks which weights a pass used, and not in a pipeline. Ranks draw and route on their
    own, so that FSDP2 waits for a gradient that a peer lacks, and ZeRO adds those of other weights.

    Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py (2.13): `post_backward`;
        deepspeed/runtime/zero/stage_1_and_2.py (0.19.8): `reduce_ipg_grads`.
    """
    model, varying = context.model, context.model.varying_weights
    if varying and (plan.pipeline > 1 or (plan.zero_stage > 0 and plan.data > 1)):
        more = f" and {len(varying) - 1} more weights" if len(varying) > 1 else ""
        return (
            f"{model.architecture} uses {varying[0]}{more} in some passes only, which differ by"
            " rank: zero_stage must be 0 and pipeline 1, or each pass must give all weights a"
            " gradient, if only by adding 0 * weight.sum() to the loss"
        )
    averages = SCHEDULES[plan.pipeline_schedule].splits_backward or plan.zero_stage > 0
    if plan.pipeline == 1 or plan.data == 1 or averages or not model.has_unused_weights:
        return None
    return (
        f"{model.architecture} has weights without a gradient, for which DDP waits in a pipeline:"
        " zero_stage must be 2 or 3, or pipeline 1"
    )


def odd_weights_are_whole(plan: Plan, context: RuleContext) -> str | None:
    """FSDP2 and DeepSpeed split and flatten weights, and fused kernels update real numbers.

    Source:
        deepspeed/runtime/engine.py (0.19.8): `split_half_float_double_sparse`, `_broadcast_model`;
        torch/distributed/fsdp/_fully_shard/_fsdp_param.py, torch/optim/adam.py (2.13).
    """
    step = context.model.step or StepFindings()
    kind = next((one for one in step.dtypes if one.startswith("complex") or " " in one), "")
    is_whole = (plan.engine, plan.zero_stage) == ("torch", 0)
    needs_foreach = kind.startswith("complex")
    if not kind or (is_whole and (plan.optimizer == "adamw_foreach" or not needs_foreach)):
        return None
    optimizer = " and optimizer adamw_foreach" if needs_foreach else ""
    name = context.model.architecture
    return f"{name} has weights in {kind}: engine must be torch with zero_stage 0{optimizer}"


def zero_3_differentiates_once(plan: Plan, context: RuleContext) -> str | None:
    """DeepSpeed's ZeRO-3 frees weights in the backward pass that a forward pass runs itself.

    Source:
        deepspeed/runtime/zero/parameter_offload.py (0.19.8): `_register_deepspeed_module`; a
        penalty on gradients was seen to end in "mat2 must be a matrix".
    """
    step = context.model.step or StepFindings()
    if not step.differentiates or (plan.engine, plan.zero_stage) != ("deepspeed", 3):
        return None
    name = context.model.architecture
    return f"{name} takes gradients in its forward pass: zero_stage 3 needs engine torch"


def replicas_leave_shards(plan: Plan, _: RuleContext) -> str | None:
    """Replicas have equally many data ranks; one of a single rank shards nothing, as in DDP."""
    if plan.data % plan.replicas:
        return f"data {plan.data} is not a multiple of replicas {plan.replicas}"
    if plan.replicas == 1 or plan.data != plan.replicas:
        return None
    return (
        f"replicas {plan.replicas} of data {plan.data} leave a single rank to shard over:"
        " use zero_stage 0 instead"
    )


def resharding_splits_the_data_ranks(plan: Plan, _: RuleContext) -> str | None:
    """Weights stay with equal groups of neighbours, fewer than all data ranks and more than one.

    The groups are opened for data ranks alone, each with its whole model.

    Source:
        torch/distributed/fsdp/_fully_shard/_fsdp_init.py, _get_post_forward_mesh_info (torch 2.13);
        Wang et al. 2023, arXiv:2306.10209, section 3.2: DeepSpeed keeps a second copy.
    """
    ranks = plan.reshard_ranks
    if not ranks:
        return None
    if (plan.tensor, plan.pipeline, plan.replicas) != (1, 1, 1):
        return (
            f"reshard_ranks {ranks} needs tensor 1, pipeline 1 and replicas 1, but they are"
            f" {plan.tensor}, {plan.pipeline} and {plan.replicas}"
        )
    if plan.engine == "deepspeed" and plan.offload_parameters != "none":
        return f"reshard_ranks {ranks} keeps weights on devices: offload_parameters must be none"
    if ranks == 1:
        return "reshard_ranks 1 keeps all weights on each rank: use zero_stage 2 instead"
    if ranks < plan.data and plan.data % ranks == 0:
        return None
    return f"reshard_ranks {ranks} does not divide data {plan.data} into two or more groups"


def experts_can_be_divided(plan: Plan, context: RuleContext) -> str | None:
    """Each expert rank has equally many experts of each layer, and whole weights otherwise.

    Source:
        transformers/distributed/configuration_utils.py (5.23): conditions on `ep_size`;
        expert_parallel.py: `MoEParamShard.shard_param`, and `AllToAllEP`, which reads the number
        of tokens for each rank on the host, where a compiled block would break.
    """
    facts, ranks = context.model.experts, plan.experts
    if ranks == 1:
        return None
    if facts is None:
        return f"{context.model.architecture} has no layers of experts: experts must be 1"
    if facts.refusal:
        return f"experts {ranks}: {facts.refusal}"
    if context.spec.train.method == "lora":
        return f"experts {ranks} is for training all weights, not for adapters"
    if plan.data % ranks or facts.count % ranks:
        return f"experts {ranks} must divide data {plan.data} and the {facts.count} experts"
    needed = {"tensor": 1, "pipeline": 1, "replicas": 1, "reshard_ranks": 0, "compile": False}
    for name, value in needed.items():
        if (found := getattr(plan, name)) != value:
            return f"experts {ranks} needs {name} {value}, but it is {found}"
    return None


def gathered_weights_have_a_next_pass(plan: Plan, _: RuleContext) -> str | None:
    """Weights that stay gathered until the next micro-batch of a step need one."""
    if not plan.gathered_between_passes or plan.accumulation > 1 or plan.micro_batch_tokens:
        return None
    return "gathered_between_passes changes nothing in a step of one micro-batch: accumulation is 1"


def prefetch_ends_with_the_blocks(plan: Plan, context: RuleContext) -> str | None:
    """Gathering more blocks ahead than a rank has is the same run as gathering all of them."""
    model = context.model
    stages = plan.pipeline * SCHEDULES[plan.pipeline_schedule].stages_per_rank
    if plan.prefetch_blocks == 0 or stages > max(model.blocks, 1):
        return None  # another rule refuses such pipelines
    longest = max(map(len, model_stages(model, stages))) if stages > 1 else model.blocks
    if plan.prefetch_blocks <= longest:
        return None
    return (
        f"prefetch_blocks {plan.prefetch_blocks} is more than the {longest} blocks of"
        f" {'a stage' if stages > 1 else 'the model'}"
    )


def static_graph_has_one_pass(plan: Plan, context: RuleContext) -> str | None:
    """DDP records the graph in its first backward pass, which must reduce gradients.

    With weights that have no gradient it might record those of the first step alone.

    Source:
        torch 2.13: with `static_graph`, a first pass in `no_sync` ends in the internal assertion
        `expect_autograd_hooks_` (c10d/reducer.cpp).
    """
    if not plan.ddp_static_graph:
        return None
    if plan.accumulation * plan.pipeline > 1 or plan.micro_batch_tokens:
        return (
            "ddp_static_graph needs steps of one backward pass, without accumulation and pipeline:"
            " DDP fails if its first pass reduces no gradients"
        )
    if context.model.has_unused_weights:
        return "ddp_static_graph needs a model that uses all of its weights in each step"
    return None
