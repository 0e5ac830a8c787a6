"""`rules`: for each rule, a plan that breaks it and no other."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from search_spaces.facts import ExpertFacts, Recomputation, StepFindings, TensorFacts
from search_spaces.hardware.catalogue import find_device
from search_spaces.knobs.registry import KNOBS, lossy_knobs
from search_spaces.plan import CHOICES, DEFAULTS, SHARES, Plan
from search_spaces.rules.base import RuleContext
from search_spaces.rules.compute import kernel_refusals
from search_spaces.rules.registry import RULES, refusal
from search_spaces.space import build_space
from tests.plans import ddp_plan
from tests.search_spaces.values import a_cluster, a_model, a_spec, around

FOUR_RATIOS = a_spec(space={"checkpoint_ratio": [0.0, 0.25, 0.3, 1.0]})
LENGTHS = {"lengths": {128: 1.0, 512: 2.0}}
LORA = a_spec(data=LENGTHS, train={"global_batch": 32, "precision": "fp32", "method": "lora"})
HALF_LORA = a_spec(data=LENGTHS, train={"global_batch": 32, "method": "lora"})
NINETY_SIX = a_spec(data=LENGTHS, train={"global_batch": 32, "sequence_length": 96})
NVME = a_spec(data=LENGTHS, cluster={"nvme_folder": "/mnt/nvme"})
EIGHT = a_cluster(slots=8)
SIZED = a_model(vocab_size=100)
GPUS = a_cluster(slots=8, device="cuda")


def lacking(feature: str, reason: str, device: str = "cpu") -> RuleContext:
    return around(cluster=a_cluster(device=device, slots=8, lacks=((feature, reason),)))


def a_zero(**knobs: Any) -> Plan:
    """Returns a plan with DeepSpeed's ZeRO-3 on two ranks."""
    return ddp_plan(**{"engine": "deepspeed", "zero_stage": 3} | knobs)


BROKEN: dict[str, tuple[Plan, RuleContext, str]] = {
    "global_batch_is_kept": (
        ddp_plan(accumulation=3),
        around(),
        "micro_batch 4 x accumulation 3 x data 2 is 24, but train.global_batch is 32",
    ),
    "packing_is_kept_apart": (
        ddp_plan(batching="packed"),
        around(model=a_model(packing=())),
        "GPT2LMHeadModel does not separate packed samples by position ids",
    ),
    "packing_is_read_by_stages": (
        ddp_plan(
            batching="packed",
            attention="flash_attention_2",
            precision="bf16",
            pipeline=2,
            data=1,
            micro_batch=4,
            accumulation=8,
        ),
        around(cluster=GPUS, model=a_model(attentions=("sdpa", "flash_attention_2"))),
        "flash_attention_2 of packed samples needs pipeline 1, but pipeline is 2",
    ),
    "micro_batch_keeps_the_loss": (
        ddp_plan(),
        around(model=a_model(batch_difference=0.45)),
        "the loss of GPT2LMHeadModel for two samples is 45 % off the mean of their losses: set"
        " train.micro_batch to the samples of a forward pass in your own training; other values in"
        " space.micro_batch are compared with it, as lossy",
    ),
    "padding_keeps_the_loss": (
        ddp_plan(),
        around(model=a_model(padding_difference=0.24), spec=a_spec(data=LENGTHS)),
        "padding changes the outputs of GPT2LMHeadModel (by up to 24 %), so padded micro-batches"
        " would train another loss: use micro_batch 1 and pad_multiple 1, or samples of one length",
    ),
    "attention_keeps_the_loss": (
        ddp_plan(attention="eager"),
        around(model=a_model(attention_differences=(("eager", 0.036),))),
        "attention eager of GPT2LMHeadModel computes other outputs than sdpa: they differ by up to"
        " 3.6 %",
    ),
    "batching_needs_lengths": (
        ddp_plan(batching="grouped"),
        around(spec=a_spec()),
        "batching grouped is the same as padded if all samples have the same length",
    ),
    "tokens_limit_micro_batches": (
        ddp_plan(micro_batch_tokens=95),
        around(spec=NINETY_SIX, model=a_model(vocab_size=100)),
        "micro_batch_tokens 95: a sample may have 96 (train.sequence_length)",
    ),
    "pad_multiple_divides": (
        ddp_plan(pad_multiple=64),
        around(spec=NINETY_SIX, model=a_model(vocab_size=100)),
        "pad_multiple: train.sequence_length 96 is not a multiple of 64",
    ),
    "cluster_has_room": (
        ddp_plan(tensor=2),
        around(),
        "needs 4 ranks, but the cluster has room for 2",
    ),
    "tensor_and_pipeline_need_torch": (
        ddp_plan(engine="deepspeed", tensor=2),
        around(cluster=EIGHT),
        "tensor 2 needs engine torch, but engine is deepspeed",
    ),
    "pipeline_can_cut": (
        ddp_plan(pipeline=2),
        around(cluster=EIGHT, model=a_model(pipeline_refusal="its blocks pass on two streams")),
        "pipeline 2: its blocks pass on two streams",
    ),
    "pipeline_is_filled": (
        ddp_plan(pipeline=4, micro_batch=8, accumulation=2),
        around(cluster=EIGHT),
        "schedule 1f1b with pipeline 4 needs one micro-batch per stage, 4 in all, but accumulation"
        " is 2",
    ),
    "split_backward_is_plain": (
        ddp_plan(
            pipeline=2, pipeline_schedule="zbv", micro_batch=4, accumulation=4, checkpoint_ratio=0.5
        ),
        around(cluster=EIGHT, model=a_model(blocks=4)),
        "schedule zbv splits the backward pass and supports only checkpoint_ratio 0, but it is 0.5",
    ),
    "interleaving_has_whole_rounds": (
        ddp_plan(pipeline=2, pipeline_schedule="interleaved", micro_batch=1, accumulation=5),
        around(
            cluster=EIGHT,
            spec=a_spec(data=LENGTHS, train={"global_batch": 10, "precision": "fp32"}),
        ),
        "schedule interleaved with pipeline 2 needs 2 rounds of equal size, but accumulation 5 is"
        " not a multiple of 2",
    ),
    "tensor_stays_inside_a_node": (
        ddp_plan(tensor=4),
        around(cluster=a_cluster(slots=8, node_slots=2)),
        "tensor 4 exceeds the 2 ranks that fit on one node",
    ),
    "tensor_divides": (
        ddp_plan(tensor=8, data=1, accumulation=8),
        around(cluster=EIGHT),
        "attention heads 12 is not a multiple of tensor 8",
    ),
    "sequence_can_be_split": (
        ddp_plan(tensor=2, sequence_parallel=True),
        around(cluster=EIGHT, model=a_model(tensor=TensorFacts(sequence_refusal="no way"))),
        "sequence_parallel: no way",
    ),
    "tensor_trains_all_weights": (
        ddp_plan(tensor=2),
        around(cluster=EIGHT, spec=LORA),
        "train.method lora: adapters are not split, so tensor must be 1, but is 2",
    ),
    "quantized_weights_fit": (
        ddp_plan(zero_stage=3, precision="bf16"),
        around(spec=HALF_LORA, model=a_model(base="nf4")),
        "zero_stage 3 of engine torch splits weights, and frozen ones in nf4 cannot be split:"
        " train.lora.base must be bf16",
    ),
    "frozen_weights_have_their_precision": (
        ddp_plan(precision="fp32"),
        around(spec=HALF_LORA, model=a_model(base="bf16")),
        "precision fp32 cannot compute with frozen weights in bf16 (train.lora.base)",
    ),
    "zero_one_needs_deepspeed": (
        ddp_plan(zero_stage=1),
        around(),
        "engine torch shards states with FSDP2 (zero_stage 2 or 3); zero_stage 1 needs engine"
        " deepspeed",
    ),
    "sharding_needs_ranks": (
        ddp_plan(zero_stage=3, data=1, accumulation=8),
        around(),
        "zero_stage 3 shards states over data ranks, but there is only one",
    ),
    "replicas_leave_shards": (
        ddp_plan(zero_stage=3, data=4, accumulation=2, replicas=4),
        around(cluster=EIGHT),
        "replicas 4 of data 4 leave a single rank to shard over: use zero_stage 0 instead",
    ),
    "checkpointing_needs_blocks": (
        ddp_plan(checkpoint_ratio=0.5),
        around(model=a_model(blocks=0)),
        "gpt2 has no repeated blocks to recompute",
    ),
    "checkpoint_ratio_is_distinct": (
        ddp_plan(checkpoint_ratio=0.3),
        around(spec=FOUR_RATIOS, model=a_model(blocks=4)),
        "checkpoint_ratio 0.3 recomputes 1 of 4 blocks, the same as 0.25",
    ),
    "fsdp_offloads_all_to_the_host": (
        ddp_plan(zero_stage=3, offload_optimizer="cpu"),
        around(),
        "FSDP2 offloads weights, gradients and optimizer states together: offload_optimizer (cpu)"
        " and offload_parameters (none) must be equal",
    ),
    "parameters_and_nvme_need_zero_three": (
        a_zero(zero_stage=2, offload_optimizer="cpu", offload_parameters="cpu"),
        around(),
        "DeepSpeed offloads parameters only at zero_stage 3, but offload_parameters is cpu at"
        " zero_stage 2",
    ),
    "nvme_can_be_used": (
        a_zero(offload_optimizer="nvme"),
        RuleContext(
            spec=NVME,
            model=a_model(),
            cluster=a_cluster(lacks=(("nvme", "libaio is missing: install libaio-dev"),)),
        ),
        "libaio is missing: install libaio-dev",
    ),
    "cpu_adam_can_be_used": (
        a_zero(offload_optimizer="cpu"),
        lacking("cpu_adam", "there is no C++ compiler: install g++"),
        "there is no C++ compiler: install g++",
    ),
    "pinning_needs_cuda": (
        a_zero(offload_optimizer="cpu", pin_memory=True),
        around(),
        "pin_memory is for copies to a GPU, but the ranks run on CPUs",
    ),
    "deepspeed_can_be_used": (
        a_zero(),
        lacking(
            "deepspeed", "DeepSpeed is not installed; run `pip install 'plimsoll-tune[deepspeed]'`"
        ),
        "DeepSpeed is not installed; run `pip install 'plimsoll-tune[deepspeed]'`",
    ),
    "attention_is_offered": (
        ddp_plan(attention="eager"),
        around(model=a_model(attentions=("sdpa",))),
        "GPT2LMHeadModel has no eager attention; it has sdpa",
    ),
    "attention_can_be_used": (
        ddp_plan(attention="flash_attention_2", precision="bf16"),
        RuleContext(
            spec=a_spec(data=LENGTHS),
            model=a_model(attentions=("sdpa", "flash_attention_2")),
            cluster=a_cluster(lacks=(("flash_attention_2", "it needs a CUDA device"),)),
        ),
        "it needs a CUDA device",
    ),
    "compile_can_be_used": (
        ddp_plan(compile=True),
        lacking("compile", "there is no C++ compiler: install g++"),
        "there is no C++ compiler: install g++",
    ),
    "fsdp_gathers_in_hooks": (
        ddp_plan(zero_stage=3),
        around(model=a_model(bypasses_hooks=True)),
        "GPT2LMHeadModel calls the forward method of its blocks directly, without the hooks that"
        " gather FSDP2's weights: zero_stage 3 needs engine deepspeed",
    ),
    "fsdp_groups_share_no_weights": (
        ddp_plan(zero_stage=3),
        around(model=a_model(shared_in_blocks=("blocks.0.up.weight", "blocks.1.up.weight"))),
        "blocks.0.up.weight and blocks.1.up.weight are one weight, which FSDP2 cannot gather with"
        " each of its blocks: zero_stage 3 needs engine deepspeed",
    ),
    "ranks_reduce_the_same_weights": (
        a_zero(zero_stage=1),
        around(model=a_model(step=StepFindings(varying=("a.weight", "b.weight")))),
        "GPT2LMHeadModel uses a.weight and 1 more weights in some passes only, which differ by"
        " rank: zero_stage must be 0 and pipeline 1, or each pass must give all weights a"
        " gradient, if only by adding 0 * weight.sum() to the loss",
    ),
    "odd_weights_are_whole": (
        ddp_plan(),
        around(model=a_model(step=StepFindings(dtypes=("complex64", "float32")))),
        "GPT2LMHeadModel has weights in complex64: engine must be torch with zero_stage 0 and"
        " optimizer adamw_foreach",
    ),
    "zero_3_differentiates_once": (
        a_zero(zero_stage=3),
        around(model=a_model(step=StepFindings(differentiates=True))),
        "GPT2LMHeadModel takes gradients in its forward pass: zero_stage 3 needs engine torch",
    ),
    "loss_can_be_replaced": (
        ddp_plan(loss="chunked"),
        around(model=a_model(loss_refusal="GPT2LMHeadModel has no linear head")),
        "loss chunked: GPT2LMHeadModel has no linear head",
    ),
    "vocab_multiple_is_distinct": (
        ddp_plan(vocab_multiple=128),
        around(
            spec=a_spec(data=LENGTHS, space={"vocab_multiple": [64, 128]}),
            model=a_model(vocab_size=50_257),
        ),
        "vocab_multiple 128 pads 50,257 words to 50,304, the same as 64",
    ),
    "mlp_can_be_tiled": (
        ddp_plan(mlp_tiles=4),
        around(model=a_model(tile_refusal="BertForMaskedLM has no MLP")),
        "mlp_tiles 4: BertForMaskedLM has no MLP",
    ),
    "float8_can_be_used": (
        ddp_plan(float8="tensorwise", compile=True, precision="bf16"),
        around(model=a_model(float8_share=0.03)),
        "float8 tensorwise: linear layers with sizes that divide 16 have 3 % of the parameters of"
        " gpt2's blocks",
    ),
    "experts_kernel_can_be_set": (
        ddp_plan(experts_kernel="eager"),
        around(),
        "experts_kernel eager: gpt2 has no experts of which transformers has several kernels",
    ),
    "tiles_are_recomputed_alone": (
        ddp_plan(mlp_tiles=2, checkpoint_ratio=0.5, checkpoint_mode="selective"),
        around(),
        "mlp_tiles 2 are recomputed one by one: checkpoint_mode must be full, but is selective",
    ),
    "mixed_blocks_are_distinct": (
        ddp_plan(checkpoint_ratio=0.25, selective_blocks=2, offloaded_blocks=2),
        around(),
        "checkpoint_ratio 0.25 recomputes 3 blocks, fewer than selective_blocks 2 and"
        " offloaded_blocks 2 together",
    ),
    "budget_is_the_only_recomputation": (
        ddp_plan(checkpoint_budget=0.5, compile=True, checkpoint_ratio=0.25),
        around(),
        "checkpoint_budget below 1 needs checkpoint_ratio 0, but it is 0.25",
    ),
    "loss_can_be_used": (
        ddp_plan(loss="fused"),
        lacking("fused_loss", "liger-kernel is not installed"),
        "liger-kernel is not installed",
    ),
    "eight_bit_can_be_used": (
        ddp_plan(optimizer="adamw_8bit"),
        lacking(
            "eight_bit", "bitsandbytes is not installed; run `pip install 'plimsoll-tune[8bit]'`"
        ),
        "bitsandbytes is not installed; run `pip install 'plimsoll-tune[8bit]'`",
    ),
    "bf16_states_are_trained_whole": (
        ddp_plan(states="bf16"),
        around(),
        "states bf16 with engine torch: precision must be bf16, but is fp32",
    ),
    "bf16_states_fit_optimizer": (
        ddp_plan(states="bf16", precision="bf16", optimizer="adafactor"),
        around(),
        "states bf16 need optimizer adamw_fused or adamw_foreach or adamw_8bit or adamw_8bit_paged"
        " or sgd or lion, but it is adafactor",
    ),
    "optimizer_is_specified": (
        ddp_plan(),
        around(a_spec(data=LENGTHS, train={"global_batch": 32, "optimizer": "sgd"})),
        "train.optimizer is sgd: optimizer must be sgd, but is adamw_fused",
    ),
    "optimizer_fits_engine": (
        ddp_plan(zero_stage=2, optimizer="adafactor"),
        around(),
        "optimizer adafactor needs whole weights: zero_stage must be 0 and tensor 1, but they are 2"
        " and 1",
    ),
    "device_has_the_features": (
        ddp_plan(loader_pin_memory=True),
        around(cluster=a_cluster(device="tpu", slots=8)),
        "page-locked memory is not shown on TPUs: pin_memory and loader_pin_memory must be false",
    ),
    "allocator_fits_device": (
        ddp_plan(allocator="expandable_segments"),
        around(),
        "allocator expandable_segments is for cuda, but the ranks run on cpu",
    ),
    "static_graph_has_one_pass": (
        ddp_plan(ddp_static_graph=True),
        around(),
        "ddp_static_graph needs steps of one backward pass, without accumulation and pipeline: DDP"
        " fails if its first pass reduces no gradients",
    ),
    "prefetch_ends_with_the_blocks": (
        ddp_plan(zero_stage=3, prefetch_blocks=13),
        around(),
        "prefetch_blocks 13 is more than the 12 blocks of the model",
    ),
    "resharding_splits_the_data_ranks": (
        ddp_plan(zero_stage=3, reshard_ranks=2),
        around(),
        "reshard_ranks 2 does not divide data 2 into two or more groups",
    ),
    "experts_can_be_divided": (
        ddp_plan(zero_stage=3, experts=2),
        around(),
        "GPT2LMHeadModel has no layers of experts: experts must be 1",
    ),
    "context_divides_heads": (
        ddp_plan(context=2, accumulation=8),
        around(),
        "context 2: its attention is not known",
    ),
    "gathered_weights_have_a_next_pass": (
        ddp_plan(zero_stage=3, micro_batch=16, accumulation=1, gathered_between_passes=True),
        around(),
        "gathered_between_passes changes nothing in a step of one micro-batch: accumulation is 1",
    ),
    "training_step_runs": (
        ddp_plan(),
        around(model=a_model(step=StepFindings(not_probed="forward: ValueError", fails=True))),
        "each trial would end with forward: ValueError",
    ),
    "recomputation_keeps_the_gradient": (
        ddp_plan(checkpoint_ratio=1.0),
        around(model=a_model(step=StepFindings(recomputation=Recomputation.FAILS))),
        "GPT2LMHeadModel fails when its blocks are recomputed",
    ),
    "checkpoint_offload_is_not_compiled": (
        ddp_plan(checkpoint_ratio=0.5, checkpoint_offload=True, compile=True),
        around(),
        "checkpoint_offload would also move the weights that a compiled block saves:"
        " compile must be false",
    ),
    "zero_3_compiles_no_selective_recomputation": (
        ddp_plan(
            engine="deepspeed",
            zero_stage=3,
            checkpoint_ratio=0.5,
            checkpoint_mode="selective",
            compile=True,
        ),
        around(),
        "compiled selective recomputation with DeepSpeed's ZeRO-3 adds biases twice:"
        " compile must be false, or checkpoint_mode full",
    ),
    "knob_at_default": (
        ddp_plan(zero_stage=3, gradient_as_bucket_view=False),
        around(),
        "gradient_as_bucket_view False changes nothing with engine torch, zero_stage 3, data 2,"
        " pipeline 1, pipeline_schedule 1f1b: it must be True",
    ),
}
# the other objection of rules that have two
AGAIN: dict[str, tuple[Plan, RuleContext, str]] = {
    "deepspeed_can_be_used": (
        ddp_plan(engine="deepspeed", zero_stage=1, precision="fp16"),
        around(cluster=a_cluster(lacks=(("deepspeed_fp16", "this CPU has no fp16"),))),
        "this CPU has no fp16",
    ),
    "pinning_needs_cuda": (
        ddp_plan(loader_pin_memory=True),
        around(),
        "loader_pin_memory is for copies to a GPU, but the ranks run on CPUs",
    ),
    "loss_can_be_replaced": (
        ddp_plan(loss="chunked", tensor=2, data=1, accumulation=8),
        around(),
        "loss chunked needs the whole head on a rank: tensor must be 1, not 2",
    ),
    "eight_bit_can_be_used": (
        ddp_plan(optimizer="adamw_8bit_paged"),
        around(),
        "adamw_8bit_paged moves its states to the memory of a GPU and back; on a CPU use"
        " adamw_8bit",
    ),
    "nvme_can_be_used": (
        a_zero(offload_optimizer="nvme"),
        around(),
        "offload to nvme needs cluster.nvme_folder, a folder on each node's drive",
    ),
    "cpu_adam_can_be_used": (
        a_zero(offload_optimizer="cpu", optimizer="adamw_foreach"),
        around(),
        "DeepSpeed updates offloaded states with its own CPU Adam: optimizer must be adamw_fused,"
        " but is adamw_foreach",
    ),
    "tensor_divides": (
        ddp_plan(tensor=2),
        around(cluster=EIGHT, model=a_model(tensor=TensorFacts(refusal="no plan splits it"))),
        "tensor 2: no plan splits it",
    ),
    "sequence_can_be_split": (
        ddp_plan(tensor=3, sequence_parallel=True),
        around(cluster=EIGHT, spec=a_spec(train={"global_batch": 32, "sequence_length": 64})),
        "sequence_parallel: train.sequence_length 64 is not a multiple of tensor 3",
    ),
    "pipeline_can_cut": (
        ddp_plan(pipeline=2, pipeline_schedule="interleaved"),
        around(cluster=EIGHT, model=a_model(blocks=3)),
        "pipeline 2 with schedule interleaved needs 4 stages, but gpt2 has 3 blocks",
    ),
    "replicas_leave_shards": (
        ddp_plan(zero_stage=3, data=4, accumulation=2, replicas=3),
        around(cluster=EIGHT),
        "data 4 is not a multiple of replicas 3",
    ),
    "attention_can_be_used": (
        ddp_plan(attention="flash_attention_2"),
        around(cluster=GPUS, model=a_model(attentions=("sdpa", "flash_attention_2"))),
        "flash_attention_2 needs precision bf16 or fp16, but precision is fp32",
    ),
    "compile_can_be_used": (
        ddp_plan(compile=True),
        around(model=a_model(bypasses_hooks=True)),
        "GPT2LMHeadModel calls the forward method of its blocks directly, which torch.compile does"
        " not replace: compile must be false",
    ),
    "parameters_and_nvme_need_zero_three": (
        a_zero(zero_stage=2, offload_optimizer="nvme"),
        around(spec=NVME),
        "DeepSpeed moves optimizer states to NVMe only at zero_stage 3; at zero_stage 2, nvme"
        " would mean cpu",
    ),
    "bf16_states_fit_optimizer": (
        ddp_plan(states="bf16_stochastic", precision="bf16"),
        lacking("stochastic", "torchao is not installed"),
        "torchao is not installed",
    ),
    "loss_can_be_used": (
        ddp_plan(loss="compiled"),
        around(),
        "loss compiled needs compile true, but compile is false",
    ),
    "fsdp_offloads_all_to_the_host": (
        ddp_plan(zero_stage=3, offload_optimizer="nvme", offload_parameters="nvme"),
        around(spec=NVME),
        "engine torch offloads only to cpu; nvme needs engine deepspeed",
    ),
}


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({}, None),
        ({"zero_stage": 1}, None),
        ({"zero_stage": 0}, "zero_stage must be 1 or 2 or 3, but is 0"),
        ({"offload_optimizer": "cpu"}, "offload_optimizer must be none, but is cpu"),
        ({"states": "bf16_stochastic"}, "states must be bf16, but is bf16_stochastic"),
        ({"engine": "torch", "precision": "fp16"}, "precision must be bf16, but is fp16"),
    ],
)
def test_deepspeed_holds_bf16_states_where_zero_shards_them(
    knobs: dict[str, Any], words: str | None
) -> None:
    plan = a_zero(**{"states": "bf16", "precision": "bf16"} | knobs)

    reason = RULES["bf16_states_are_trained_whole"](plan, around())

    assert reason is None if words is None else words in (reason or "")
    assert "LoRA" in (RULES["bf16_states_are_trained_whole"](plan, around(HALF_LORA)) or "")


@pytest.mark.parametrize(
    ("knobs", "reason"),
    [
        ({"selective_blocks": 3}, "selective_blocks 3 are all recomputed blocks, the same as"),
        ({"offloaded_blocks": 3}, "the same as checkpoint_offload"),
        ({"offloaded_blocks": 1, "compile": True}, "compile must be false"),
        ({"selective_blocks": 1, "mlp_tiles": 2}, "selective_blocks must be 0, but is 1"),
        (
            {"selective_blocks": 1, "engine": "deepspeed", "zero_stage": 3, "compile": True},
            "adds biases twice",
        ),
        ({"selective_blocks": 1, "checkpoint_mode": "selective"}, "it must be 0"),
        ({"selective_blocks": 1, "offloaded_blocks": 1}, None),
    ],
)
def test_mixed_blocks_follow_the_rules_of_their_ways(
    knobs: dict[str, Any], reason: str | None
) -> None:
    plan = ddp_plan(**{"checkpoint_ratio": 0.25} | knobs)
    found = refusal(plan, around(cluster=EIGHT))

    assert (found is None) if reason is None else (found is not None and reason in found.detail)


@pytest.mark.parametrize("knob", ["tensor", "pipeline"])
def test_deepspeed_splits_no_model_over_ranks(knob: str) -> None:
    rule = RULES["tensor_and_pipeline_need_torch"]
    reason = f"{knob} 2 needs engine torch, but engine is deepspeed"

    assert rule(ddp_plan(engine="deepspeed", **{knob: 2}), around()) == reason
    assert rule(ddp_plan(**{knob: 2}), around()) is None


def test_each_rule_has_a_plan_that_breaks_it() -> None:
    assert set(BROKEN) == set(RULES)


def test_packing_is_kept_apart_under_each_attention() -> None:
    context = around(model=a_model(packing=("eager",)))

    assert refusal(ddp_plan(batching="packed", attention="eager"), context) is None
    refused = refusal(ddp_plan(batching="packed", attention="sdpa"), context)
    assert refused is not None
    assert refused.detail == "GPT2LMHeadModel does not separate packed samples under sdpa"


@pytest.mark.parametrize(
    "knobs", [{"pipeline": 1}, {"data": 1}, {"zero_stage": 3}, {"pipeline_schedule": "zbv"}, {}]
)
def test_ddp_waits_for_weights_without_a_gradient_in_pipelines(knobs: dict[str, Any]) -> None:
    context = around(model=a_model(unused_weights=("head.weight",)))
    plan = ddp_plan(**{"pipeline": 2} | knobs)

    assert (RULES["ranks_reduce_the_same_weights"](plan, context) is None) == bool(knobs)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"data": 8, "reshard_ranks": 4}, None),
        ({"data": 8, "reshard_ranks": 3}, "does not divide data 8 into two or more groups"),
        ({"data": 8, "reshard_ranks": 4, "engine": "deepspeed"}, None),
        (
            {"data": 8, "reshard_ranks": 4, "engine": "deepspeed", "offload_parameters": "cpu"},
            "offload_parameters must be none",
        ),
        ({"data": 8, "reshard_ranks": 1}, "use zero_stage 2 instead"),
        ({"data": 4, "tensor": 2, "reshard_ranks": 2}, "needs tensor 1, pipeline 1 and replicas 1"),
    ],
)
def test_weights_are_kept_by_some_of_the_data_ranks(
    knobs: dict[str, Any], words: str | None
) -> None:
    reason = RULES["resharding_splits_the_data_ranks"](ddp_plan(zero_stage=3, **knobs), around())

    assert reason is None if words is None else reason is not None and words in reason


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({}, None),
        ({"zero_stage": 3, "batching": "packed", "attention": "flash_attention_2"}, None),
        ({"context": 8}, "12 attention heads are not a multiple of context 8"),
        ({"tensor": 2}, "context 2 needs tensor 1, but it is 2"),
        ({"engine": "deepspeed"}, "context 2 needs engine torch, but it is deepspeed"),
        (
            {"attention": "eager"},
            "context 2 needs an attention that sees whole rows: sdpa or flash attention",
        ),
    ],
)
def test_context_ranks_divide_heads(knobs: dict[str, Any], words: str | None) -> None:
    model = a_model(attention_heads=12, context_refusal=None)
    plan = ddp_plan(**{"data": 8, "context": 2} | knobs)

    assert RULES["context_divides_heads"](plan, around(model=model)) == words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (4, None),
        (8, "micro_batch 4 x accumulation 4 x data 8 / context 2 is 64, but train.global_batch is"),
        (3, "data 3 is not a multiple of context 2"),
    ],
)
def test_context_ranks_share_samples(data: int, words: str | None) -> None:
    reason = RULES["global_batch_is_kept"](ddp_plan(data=data, context=2), around())

    assert reason is None if words is None else str(reason).startswith(words)


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({}, None),
        ({"experts": 4}, None),
        ({"experts": 8}, "experts 8 must divide data 8 and the 4 experts"),
        ({"data": 6, "experts": 4}, "experts 4 must divide data 6 and the 4 experts"),
        ({"tensor": 2, "data": 4}, "experts 2 needs tensor 1, but it is 2"),
        ({"replicas": 2}, "experts 2 needs replicas 1, but it is 2"),
        ({"compile": True}, "experts 2 needs compile False, but it is True"),
    ],
)
def test_experts_are_divided_over_data_ranks(knobs: dict[str, Any], words: str | None) -> None:
    facts = ExpertFacts(count=4, layers=12, per_token=2, parameters=80_000_000)
    plan = ddp_plan(**{"data": 8, "zero_stage": 3, "experts": 2} | knobs)

    assert RULES["experts_can_be_divided"](plan, around(model=a_model(experts=facts))) == words


@pytest.mark.parametrize(
    ("kernels", "kernel", "words"),
    [
        (True, "eager", None),
        (False, "grouped_mm", None),
        (False, "eager", "experts_kernel eager: {} has no experts of which transformers has"),
    ],
)
def test_kernels_of_experts_are_those_of_transformers(
    kernels: bool, kernel: str, words: str | None
) -> None:
    facts = ExpertFacts(count=4, layers=1, per_token=2, parameters=80, kernels=kernels)
    model = a_model(experts=facts)
    reason = RULES["experts_kernel_can_be_set"](
        ddp_plan(experts_kernel=kernel), around(model=model)
    )

    assert (reason or "").startswith((words or "").format(model.name))
    assert (reason is None) == (words is None)


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (around(spec=a_spec(data=LENGTHS), model=a_model(vocab_size=100)), None),
        (around(spec=a_spec(data=LENGTHS), model=a_model(vocab_size=None)), "its own batches"),
        (around(spec=a_spec(), model=a_model(vocab_size=100)), "all samples have the same length"),
    ],
)
def test_only_rows_that_plimsoll_pads_are_rounded(context: RuleContext, words: str | None) -> None:
    reason = RULES["pad_multiple_divides"](ddp_plan(pad_multiple=8), context)

    assert reason is None if words is None else reason is not None and words in reason


@pytest.mark.parametrize(
    ("knobs", "context", "words"),
    [
        ({}, {}, None),
        ({"micro_batch_tokens": 384}, {}, "4 samples never have more than 384"),
        ({"pipeline": 2, "data": 1}, {}, "a pipeline has the same micro-batches in every step"),
        ({}, {"model": a_model(vocab_size=None)}, "makes its own batches"),
        (
            {},
            {"spec": a_spec(train={"global_batch": 32, "sequence_length": 96})},
            "all samples have one length",
        ),
        ({"ddp_static_graph": True, "accumulation": 1}, {}, "steps of one backward pass"),
        ({}, {"model": a_model(vocab_size=9, batch_difference=0.4)}, "0, so that all have as many"),
        ({"zero_stage": 3, "gathered_between_passes": True, "accumulation": 1}, {}, None),
    ],
)
def test_tokens_limit_micro_batches_whose_number_may_differ(
    knobs: dict[str, Any], context: dict[str, Any], words: str | None
) -> None:
    own = a_spec(data=LENGTHS, train={"global_batch": 32, "sequence_length": 96, "micro_batch": 4})
    spec = own if context.get("model", SIZED).batch_difference else NINETY_SIX
    given = around(**{"cluster": EIGHT, "spec": spec, "model": SIZED} | context)
    plan = ddp_plan(**{"micro_batch_tokens": 96} | knobs)
    names = ("tokens_limit_micro_batches", "static_graph_has_one_pass")
    names += ("micro_batch_keeps_the_loss", "gathered_weights_have_a_next_pass")
    found = " ".join(filter(None, (RULES[name](plan, given) for name in names)))

    assert found == "" if words is None else words in found


@pytest.mark.parametrize(("name", "case"), [*BROKEN.items(), *AGAIN.items()])
def test_breaks_this_rule_and_no_other(name: str, case: tuple[Plan, RuleContext, str]) -> None:
    plan, context, detail = case

    objections = {rule: reason for rule, check in RULES.items() if (reason := check(plan, context))}

    assert objections == {name: detail}
    refused = refusal(plan, context)
    assert refused is not None
    assert (refused.rule, refused.detail) == (name, detail)


@pytest.mark.parametrize(
    ("blocks", "searched", "kept"),
    [
        (12, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.25, 0.5, 0.75, 1.0)),
        (2, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 0.5, 1.0)),  # a quarter of two rounds up to one
        (1, (0.0, 0.25, 0.5, 0.75, 1.0), (0.0, 1.0)),
        (4, (0.3, 0.2), (0.2,)),  # both one block: 0.2 and 0.3 are as far off, the lower stays
        (4, (0.9, 0.95), (0.95,)),
    ],
)
def test_keeps_one_ratio_for_each_number_of_blocks(
    blocks: int, searched: tuple[float, ...], kept: tuple[float, ...]
) -> None:
    context = around(
        spec=a_spec(space={"checkpoint_ratio": searched}), model=a_model(blocks=blocks)
    )

    left = tuple(
        ratio for ratio in searched if refusal(ddp_plan(checkpoint_ratio=ratio), context) is None
    )

    assert left == kept


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_deepspeed_offloads_on_a_single_rank(stage: int) -> None:
    plan = a_zero(zero_stage=stage, data=1, accumulation=8, offload_optimizer="cpu")

    assert refusal(plan, around()) is None
    assert refusal(replace(plan, offload_optimizer="none"), around()) is not None


@pytest.mark.parametrize(
    ("pipeline", "accumulation", "legal"),
    [(4, 8, True), (4, 3, True), (4, 10, True), (4, 9, False), (2, 4, True), (2, 7, False)],
)
def test_interleaving_takes_what_torch_takes(pipeline: int, accumulation: int, legal: bool) -> None:
    """Includes the examples in torch's documentation of the schedule."""
    plan = ddp_plan(
        pipeline=pipeline,
        pipeline_schedule="interleaved",
        data=1,
        micro_batch=1,
        accumulation=accumulation,
    )

    assert (RULES["interleaving_has_whole_rounds"](plan, around()) is None) is legal


# ---------------------------------------------------------------- properties

COUNTS = {name: st.integers(1, 9) for name in Plan.__dataclass_fields__ if name not in CHOICES}
PLANS = st.builds(
    Plan,
    **COUNTS
    | {name: st.sampled_from(choices) for name, choices in CHOICES.items()}
    | dict.fromkeys(SHARES, st.floats(0, 1))
    | {"loader_workers": st.integers(0, 4)},
)
AROUND = st.builds(
    around,
    spec=st.sampled_from([a_spec(), LORA, NVME, FOUR_RATIOS]),
    model=st.builds(
        a_model,
        blocks=st.integers(0, 12),
        tensor=st.sampled_from([TensorFacts(), TensorFacts(refusal="no plan splits it")]),
    ),
    cluster=st.sampled_from([a_cluster(), EIGHT, GPUS, a_cluster(lacks=(("compile", "no g++"),))]),
)


@given(plan=PLANS, context=AROUND)
def test_any_plan_is_legal_or_refused_with_a_sentence(plan: Plan, context: RuleContext) -> None:
    refused = refusal(plan, context)

    event("legal" if refused is None else refused.rule)
    for name, rule in RULES.items():
        assert (reason := rule(plan, context)) is None or reason.strip(), name
        assert refused is not None or reason is None


@given(plan=PLANS)
def test_what_changes_nothing_is_refused_until_it_is_at_rest(plan: Plan) -> None:
    for knob in KNOBS:
        if knob.name in DEFAULTS and not knob.is_active(plan.as_dict()):
            plan = replace(plan, **{knob.name: DEFAULTS[knob.name]})

    assert RULES["knob_at_default"](plan, around()) is None


def test_padding_matters_only_where_there_is_some() -> None:
    differs = a_model(padding_difference=0.24)
    equal, varied = a_spec(), a_spec(data=LENGTHS)

    assert refusal(ddp_plan(), around(model=differs, spec=equal)) is None
    alone = ddp_plan(micro_batch=1, accumulation=16)
    assert refusal(alone, around(model=differs, spec=varied)) is None
    rounded = refusal(replace(alone, pad_multiple=8), around(model=differs, spec=varied))
    assert rounded is not None
    assert rounded.rule == "padding_keeps_the_loss"
    short = a_model(padding_difference=0.24, padding_from=4096)
    assert refusal(ddp_plan(), around(model=short, spec=varied)) is None


@pytest.mark.parametrize(
    ("own", "searched", "batching", "micro_batches", "lossy"),
    [
        (None, [2], "padded", {2}, set()),
        (4, None, "padded", {4}, set()),
        (4, [2, 4, 8], "padded", {2, 4, 8}, {2, 8}),
        (4, [2, 4, 8], "grouped", {2, 4, 8}, {2, 8}),
    ],
)
def test_the_micro_batch_is_a_choice_where_the_loss_depends_on_it(
    own: int | None,
    searched: list[int] | None,
    batching: str,
    micro_batches: set[int],
    lossy: set[int],
) -> None:
    spec = a_spec(
        data=LENGTHS,
        train={"global_batch": 32, "precision": "fp32", "micro_batch": own},
        space={"micro_batch": searched, "batching": [batching, "packed"]},
    )
    context = around(spec=spec, model=a_model(batch_difference=4e-4))
    space = build_space(context, 2)

    assert {plan.micro_batch for plan in space.candidates} == micro_batches
    assert {plan.batching for plan in space.candidates} == {batching}
    assert space.baseline.micro_batch == (own or 2)
    inexact = {plan.micro_batch for plan in space.candidates if lossy_knobs(plan, spec)}
    assert inexact == lossy
    assert (refusal(ddp_plan(), context) is None) == (own == 4 and batching == "padded")


@pytest.mark.parametrize(
    ("share", "words"),
    [(3.9e-4, "0.039 %"), (0.093, "9.3 %"), (2.5, "250 %"), (math.inf, "alone is 0 or")],
)
def test_a_difference_has_digits_that_say_something(share: float, words: str) -> None:
    refused = refusal(ddp_plan(), around(model=a_model(batch_difference=share)))

    assert refused is not None
    assert words in refused.detail


def test_the_attention_that_a_user_names_is_the_reference() -> None:
    model = a_model(attention_differences=(("eager", 0.036),))
    named = around(model=model, spec=a_spec(space={"attention": ["eager"]}))

    assert refusal(ddp_plan(attention="eager"), named) is None
    assert refusal(ddp_plan(attention="sdpa"), named) is not None


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({}, None),
        ({"precision": "fp32"}, "float8 rowwise needs precision bf16, but it is fp32"),
        ({"tensor": 2}, "float8 rowwise needs tensor 1, but it is 2"),
        ({"engine": "deepspeed"}, "float8 rowwise needs engine torch, but it is deepspeed"),
    ],
)
def test_float8_is_of_whole_layers_in_bf16(knobs: dict[str, Any], words: str | None) -> None:
    plan = ddp_plan(**{"float8": "rowwise", "compile": True, "precision": "bf16"} | knobs)

    assert RULES["float8_can_be_used"](plan, around(model=a_model(float8_share=1.0))) == words


@pytest.mark.parametrize(("gpu", "has"), [("A100", False), ("L4", True), ("H100", True)])
def test_gpus_before_ada_have_no_float8(gpu: str, has: bool) -> None:
    assert ("float8" not in dict(kernel_refusals(find_device(gpu)))) == has
