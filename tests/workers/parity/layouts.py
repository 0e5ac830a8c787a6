"""Layouts: the plans that are compared, each by a name, and the models that run them."""

from collections.abc import Mapping
from typing import Any

from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from tests.workers.parity.architectures import GLOBAL_BATCH

Knobs = Mapping[str, Any]
ONE_BY_ONE: Knobs = {"data": 1, "micro_batch": 1, "attention": "eager"}
_DEEPSPEED: Knobs = {"engine": "deepspeed"}
_ON_CPU: Knobs = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
_ON_NVME: Knobs = {"offload_optimizer": "nvme", "offload_parameters": "nvme"}

# for every model
COMMON: Mapping[str, Knobs] = {
    "alone, padded": {"data": 1, "micro_batch": 4},
    "alone, one sample": {"data": 1, "micro_batch": 1},
    "alone, grouped, checkpoints": {
        **{"data": 1, "micro_batch": 2},
        **{"batching": "grouped", "checkpoint_ratio": 1.0},
    },
    "alone, packed": {"data": 1, "micro_batch": 4, "batching": "packed"},
    "alone, eager": {"data": 1, "micro_batch": 4, "attention": "eager"},
    "ddp": {},
    "zero 2": {"zero_stage": 2},
    "zero 3, checkpoints": {"zero_stage": 3, "checkpoint_ratio": 0.5},
    "tensor": {"tensor": 2, "data": 1},
    "tensor, sequence": {"tensor": 2, "data": 1, "sequence_parallel": True},
    "pipeline": {"pipeline": 2, "data": 1},
    "deepspeed zero 2": {**_DEEPSPEED, "zero_stage": 2},
    "deepspeed zero 3": {**_DEEPSPEED, "zero_stage": 3},
    "tensor, zero 3": {"tensor": 2, "data": 2, "zero_stage": 3},
    "chunked loss, zero 3": {"zero_stage": 3, "loss": "chunked"},
    "hybrid shard": {"data": 4, "zero_stage": 3, "replicas": 2, "micro_batch": 1},
    "expert ranks, zero 3": {"zero_stage": 3, "experts": 2},
    "context ranks, ddp": {"context": 2},
    "context ranks, packed, zero 3": {"context": 2, "zero_stage": 3, "batching": "packed"},
    "context ranks, four": {"data": 4, "context": 4, "zero_stage": 2, "micro_batch": 4},
    "context ranks, two of four": {
        **{"data": 4, "context": 2, "zero_stage": 3, "checkpoint_ratio": 1.0},
        **{"batching": "grouped", "loss": "chunked"},
    },
    "expert ranks, four data ranks": {
        **{"data": 4, "zero_stage": 2, "experts": 2, "micro_batch": 1, "checkpoint_ratio": 1.0}
    },
}
# for one model of each kind: what an engine does with blocks and weights here does not depend on
# the architecture, and compilation takes a minute a model
FURTHER: Mapping[str, Knobs] = {
    "fp16, ddp": {"precision": "fp16"},
    "fp16, zero 3": {"precision": "fp16", "zero_stage": 3},
    "fp16, pipeline": {"precision": "fp16", "pipeline": 2, "data": 1},
    "padded words, zero 3": {"zero_stage": 3, "vocab_multiple": 128},
    "tiles, zero 3": {"zero_stage": 3, "mlp_tiles": 4},
    "limited tokens, zero 3": {
        **{"zero_stage": 3, "micro_batch": 4, "batching": "grouped"},
        "micro_batch_tokens": 24,
    },
    "mixed blocks, zero 3": {"zero_stage": 3, "checkpoint_ratio": 1.0, "selective_blocks": 1},
    "deepspeed zero 3, second copy": {
        **{**_DEEPSPEED, "zero_stage": 3, "data": 4, "micro_batch": 1},
        "reshard_ranks": 2,
    },
    "compile, ddp": {"compile": True},
    "compile, loss too": {"compile": True, "loss": "compiled"},
    "compile, zero 3, checkpoints": {"compile": True, "zero_stage": 3, "checkpoint_ratio": 0.5},
    "offload": {**_ON_CPU, "zero_stage": 3},
    "expert ranks, eager kernel": {"zero_stage": 2, "experts": 2, "experts_kernel": "eager"},
    "experts one after the other, ddp": {"experts_kernel": "eager"},
    "experts copied for tokens, zero 3": {"zero_stage": 3, "experts_kernel": "batched_mm"},
    "expert ranks, offload": {**_ON_CPU, "zero_stage": 3, "experts": 2},
    "expert ranks, selective": {
        **{"zero_stage": 3, "experts": 2, "checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}
    },
    "deepspeed zero 2, CPU Adam": {**_DEEPSPEED, "zero_stage": 2, "offload_optimizer": "cpu"},
    "deepspeed zero 3, CPU Adam": {**_DEEPSPEED, **_ON_CPU, "zero_stage": 3},
    "deepspeed zero 3, NVMe": {**_DEEPSPEED, **_ON_NVME, "zero_stage": 3},
    "deepspeed zero 2, fp16": {**_DEEPSPEED, "zero_stage": 2, "precision": "fp16"},
    "8-bit, ddp": {"optimizer": "adamw_8bit"},
    "8-bit, zero 3": {"optimizer": "adamw_8bit", "zero_stage": 3},
}
# for functions of users, whose rows are padded to one length
FOR_FUNCTIONS: Mapping[str, Knobs] = {
    **{name: COMMON[name] for name in ("alone, padded", "alone, one sample", "ddp", "zero 2")},
    "alone, checkpoints": {"data": 1, "micro_batch": 2, "checkpoint_ratio": 1.0},
    **{name: COMMON[name] for name in ("zero 3, checkpoints", "deepspeed zero 2", "tensor")},
    **{name: COMMON[name] for name in ("deepspeed zero 3", "pipeline")},
    "offload": FURTHER["offload"],
}
# for the covering models: exported scripts, each with the format that writes it
EXPORTS: Mapping[str, tuple[str, Knobs]] = {
    "export torchrun, one rank": ("torchrun", {"data": 1}),
    "export torchrun, ddp": ("torchrun", {}),
    "export torchrun, zero 3": ("torchrun", {"zero_stage": 3, "checkpoint_ratio": 0.5}),
    "export torchrun, expert ranks": ("torchrun", {"zero_stage": 3, "experts": 2}),
    "export torchrun, experts one after the other": ("torchrun", {"experts_kernel": "eager"}),
    "export torchrun, chunked loss": ("torchrun", {"loss": "chunked"}),
    "export torchrun, padded words": ("torchrun", {"vocab_multiple": 128}),
    "export torchrun, tiles": ("torchrun", {"mlp_tiles": 4}),
    "export deepspeed, zero 2": ("deepspeed", {**_DEEPSPEED, "zero_stage": 2}),
    "export deepspeed, zero 3": ("deepspeed", {**_DEEPSPEED, "zero_stage": 3}),
    "export accelerate, ddp": ("accelerate", {}),
    "export accelerate, expert ranks": ("accelerate", {"zero_stage": 3, "experts": 2}),
    "export accelerate, tensor ranks": ("accelerate", {"tensor": 2, "data": 1}),
    "export hf-trainer, expert ranks": ("hf-trainer", {"zero_stage": 3, "experts": 2}),
    "export hf-trainer, tensor and data ranks": (
        "hf-trainer",
        {"tensor": 2, "data": 2, "zero_stage": 3, "checkpoint_ratio": 1.0},
    ),
    "export hf-trainer, one rank": ("hf-trainer", {"data": 1, "batching": "grouped"}),
    "export hf-trainer, ddp": ("hf-trainer", {}),
    "export hf-trainer, chunked loss": ("hf-trainer", {"loss": "chunked"}),
    "export hf-trainer, zero 3": ("hf-trainer", {**_DEEPSPEED, "zero_stage": 3}),
    "export ray-train, zero 2": ("ray-train", {"zero_stage": 2}),
    "export ray-train, deepspeed": ("ray-train", {**_DEEPSPEED, "zero_stage": 1}),
}
COVERING = (
    *(("causal-lm", name) for name in ("llama", "gpt2", "mixtral")),
    *(("masked-lm", "bert"), ("seq2seq", "t5"), ("sequence-classification", "gpt2")),
)


def layouts_of(task: str, model: str) -> Mapping[str, Knobs]:
    """Returns the layouts that a model runs."""
    if (task, model) not in COVERING:
        return COMMON
    exported = {name: knobs for name, (_, knobs) in EXPORTS.items()}
    layouts = {**COMMON, **FURTHER, **exported}
    if model == "mixtral":  # rounding to fp16 decides which experts a token takes
        return {name: knobs for name, knobs in layouts.items() if "precision" not in knobs}
    return layouts


def plan_of(knobs: Knobs, facts: ModelFacts) -> Plan:
    """Returns the plan of a layout; the attention is the model's first unless the layout says."""
    full: dict[str, Any] = {
        "zero_stage": 0,
        "micro_batch": 2,
        "checkpoint_ratio": 0.0,
        "attention": next(iter(facts.attentions), "eager"),
        "precision": "fp32",
        "batching": "padded",
        "optimizer": "adamw_fused" if "offload_optimizer" in knobs else "adamw_foreach",
        "data": 2,
    } | dict(knobs)
    samples = full["micro_batch"] * full["data"] // full.get("context", 1)
    return Plan(accumulation=GLOBAL_BATCH // samples, **full)
