"""torchtitan's configuration in TOML: of the last release that reads it, see decision 24."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import filled, quotable_title, start_command
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.plan import Optimizer, Plan, Schedule
from search_spaces.settings.checkpointing import render_checkpoint
from search_spaces.settings.render import PipelineSettings, render_environment, render_torch

Value = str | bool | int | float | list[list[str]] | list[str]

# presets of ours that are a model of torchtitan's: its name, its flavor (models/*/__init__.py)
FLAVORS = {
    "llama-3-8b": ("llama3", "8B"),
    "llama-3-70b": ("llama3", "70B"),
    "llama-3.1-405b": ("llama3", "405B"),
    "qwen3-8b": ("qwen3", "8B"),
}
IMPLEMENTATIONS: dict[Optimizer, str] = {"adamw_fused": "fused", "adamw_foreach": "foreach"}
_SCHEDULES: dict[Schedule, str] = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
VERSION = "0.2.2"  # whose source all of this was read in
CONFIG = "train.toml"


def flavor_of(taken: ExportSource) -> tuple[str, str] | None:
    """Name and flavor in torchtitan of the model that was measured; None if it has none."""
    model = taken.spec.model
    return None if model.config else FLAVORS.get(model.name)


def every_nth(chosen: Sequence[int], blocks: int) -> int | None:
    """The n for which every nth of the blocks is chosen; None if there is none."""
    nths = range(1, blocks + 1)
    return next((n for n in nths if tuple(chosen) == tuple(range(n - 1, blocks, n))), None)


def sections(taken: ExportSource) -> dict[str, dict[str, str]]:
    """By name, the keys of each and their values as TOML has them."""
    told: dict[str, dict[str, Value]] = {
        "job": {"description": quotable_title(taken)},
        "model": _model(taken),
        "optimizer": _optimizer(taken),
        "lr_scheduler": _rate(taken),
        "training": _training(taken),
        "training.dataloader": {
            "num_workers": taken.plan.loader_workers,
            "pin_memory": taken.plan.loader_pin_memory,
        },
        "parallelism": _parallelism(taken),
        "activation_checkpoint": _checkpoint(taken),
        "compile": {"enable": taken.plan.compile, "components": ["model"]},
        "debug": {"seed": taken.spec.train.seed},
    }
    return {name: {key: _toml(value) for key, value in keys.items()} for name, keys in told.items()}


def _toml(value: Value) -> str:
    """A value as TOML has it; of these kinds JSON's texts are the same, but for infinity."""
    return "inf" if value == float("inf") else json.dumps(value)


def _model(taken: ExportSource) -> dict[str, Value]:
    name, flavor = flavor_of(taken) or ("", "")  # torchtitan stops at an empty name
    return {"name": name, "flavor": flavor}


def _optimizer(taken: ExportSource) -> dict[str, Value]:
    train = taken.spec.train
    return {
        "name": "AdamW",
        "lr": train.learning_rate,
        "beta1": 0.9,  # torch's own, as measured
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": train.weight_decay,
        "implementation": IMPLEMENTATIONS[taken.plan.optimizer],
    }


def _rate(taken: ExportSource) -> dict[str, Value]:
    train = taken.spec.train
    told: dict[str, Value] = {
        "warmup_steps": train.warmup_steps,
        "total_steps": train.total_steps,
        "min_lr_factor": 0.0,
    }
    if train.schedule == "constant":
        return told | {"decay_ratio": 0.0}
    return told | {"decay_type": train.schedule}


def _training(taken: ExportSource) -> dict[str, Value]:
    plan, train = taken.plan, taken.spec.train
    # of a pipeline it is what flows through it in a step, in micro-batches
    passes = plan.accumulation if plan.pipeline > 1 else 1
    return {
        "local_batch_size": plan.micro_batch * passes,
        "global_batch_size": plan.global_batch,
        "seq_len": train.sequence_length,
        "max_norm": train.grad_clip or float("inf"),
        "steps": train.total_steps,
        "enable_cpu_offload": plan.offload_parameters == "cpu",
        "dtype": "float32",  # of the weights that are updated
        "mixed_precision_param": _DTYPES[plan.precision],
        "mixed_precision_reduce": "float32",
    }


def _parallelism(taken: ExportSource) -> dict[str, Value]:
    plan = taken.plan
    sharded = plan.zero_stage in (2, 3)
    replicas = plan.replicas if sharded else plan.data
    told: dict[str, Value] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": plan.data // replicas,
        "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
        "tensor_parallel_degree": plan.tensor,
        "pipeline_parallel_degree": plan.pipeline,
    }
    pipeline = render_torch(plan, taken.model).pipeline
    return told if pipeline is None else told | _pipeline(plan, pipeline)


def _pipeline(plan: Plan, settings: PipelineSettings) -> dict[str, Value]:
    stages = [[f"layers.{block}" for block in stage] for stage in settings.stages]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "output"]
    return {
        "pipeline_parallel_schedule": _SCHEDULES[settings.schedule],
        "pipeline_parallel_microbatch_size": plan.micro_batch,
        "module_fqns_per_model_part": stages,
    }


def _checkpoint(taken: ExportSource) -> dict[str, Value]:
    blocks = taken.model.blocks
    chosen = render_checkpoint(taken.plan, blocks).blocks
    nth = every_nth(chosen, blocks)
    if nth is None or not chosen:
        return {"mode": "none"}
    return {"mode": "full"} if nth == 1 else {"mode": "selective", "selective_ac_option": str(nth)}


def refusals(plan: Plan) -> Iterator[str]:
    """Why torchtitan cannot train this plan, a reason each."""
    if plan.engine != "torch":
        yield f"its engine is {plan.engine}"
    if plan.precision == "fp16":
        yield "precision is fp16: torchtitan scales no loss"
    if plan.optimizer not in IMPLEMENTATIONS:
        yield f"optimizer is {plan.optimizer}: torchtitan has AdamW, fused and foreach"
    if plan.compression != "none":
        yield f"compression is {plan.compression}: torchtitan sends gradients as they are"
    yield from _layout(plan)
    yield from _checkpointing(plan)


def export(taken: ExportSource) -> Bundle:
    """The configuration, and how torchtitan is started with it.

    Raises:
        UserError: If torchtitan cannot train this model so.
    """
    if misfits := list(_misfits(taken)):
        number = taken.record.number
        raise UserError(f"torchtitan cannot say the plan of trial {number}: {'; '.join(misfits)}")
    command = start_command(taken, f"-m torchtitan.train --job.config_file {CONFIG}")
    unsaid = tuple(_unsaid(taken))
    text = filled(
        "torchtitan.toml.jinja",
        title=quotable_title(taken),
        command=command,
        version=VERSION,
        unsaid=[quotable(sentence) for sentence in unsaid],
        sections=sections(taken),
    )
    return Bundle(
        format="torchtitan",
        files={CONFIG: text},
        command=command,
        environment=render_environment(taken.plan, taken.device),
        unsaid=unsaid,
        local=False,
    )


def quotable(sentence: str) -> str:
    """Fit for a comment, whatever names are in it."""
    return ascii(sentence)[1:-1]


def _layout(plan: Plan) -> Iterator[str]:
    split = [name for name in ("tensor", "pipeline") if getattr(plan, name) > 1]
    sharded = plan.zero_stage in (2, 3) and plan.data > plan.replicas
    if plan.zero_stage in (2, 3) and not sharded:
        yield "it shards over one rank: torchtitan shards over two or more"
    if plan.zero_stage == 0 and plan.data > 1 and split:
        yield f"zero_stage is 0 beside {' and '.join(split)}: torchtitan replicates whole models"
    if not sharded and split and plan.precision != "fp32":
        yield (
            f"precision is {plan.precision} beside {' and '.join(split)} without FSDP: torchtitan"
            " computes in fp32 then"
        )
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield f"tensor is {plan.tensor} without sequence_parallel: torchtitan splits it always"


def _checkpointing(plan: Plan) -> Iterator[str]:
    ratio = plan.checkpoint_ratio
    if not ratio:
        return
    if plan.checkpoint_mode == "selective":
        yield "checkpoint_mode is selective: torchtitan's keeps every other matmul's output"
    if plan.checkpoint_offload:
        yield "checkpoint_offload is on: torchtitan keeps activations where they are"
    if abs(ratio * round(1 / ratio) - 1) > 0.02:
        yield f"checkpoint_ratio is {ratio:g}: torchtitan recomputes all blocks or every nth"
    elif ratio < 1 and plan.pipeline > 1:
        yield (
            f"checkpoint_ratio is {ratio:g} beside pipeline: torchtitan counts blocks in each rank"
        )


def _misfits(taken: ExportSource) -> Iterator[str]:
    """What only the model or the specification tells."""
    plan, train, blocks = taken.plan, taken.spec.train, taken.model.blocks
    if train.method != "full":
        yield f"train.method is {train.method}"
    if train.sequence_length % plan.tensor:
        yield f"train.sequence_length {train.sequence_length} is no multiple of tensor"
    chosen = render_checkpoint(plan, blocks).blocks
    if chosen and every_nth(chosen, blocks) is None:
        yield f"{len(chosen)} of {blocks} blocks are recomputed, which are not every nth"
    flavor = flavor_of(taken)
    if flavor is not None and flavor[0] == "qwen3" and plan.pipeline > 1:
        yield "torchtitan has no pipelines for qwen3"


def _unsaid(taken: ExportSource) -> Iterator[str]:
    plan, train = taken.plan, taken.spec.train
    yield (
        f"It is for torchtitan {VERSION}, the last release that reads TOML; 0.3.0 is configured in"
        " Python. Files such as this were read by its parser, and trained nothing."
    )
    if flavor_of(taken) is None:
        yield (
            f"torchtitan has no flavor that is {taken.spec.model.name} as it was measured (it has"
            f" {', '.join(FLAVORS)}): put your own into [model], which names none."
        )
    yield (
        "Model, weights and data are torchtitan's: the losses are others, and so may be the speed"
        " and the peak. Put your dataset into [training] and your tokenizer's folder into [model]"
        " hf_assets_path."
    )
    yield (
        f"Samples were {plan.batching}; torchtitan's dataset is one text, cut at each"
        f" {train.sequence_length} tokens."
    )
    if plan.attention != "sdpa":
        yield f"Attention was `{plan.attention}`; a flavor of torchtitan has its own (sdpa)."
    if train.warmup_steps:
        yield "The learning rate's warm-up is a step ahead of what was measured."
    if plan.zero_stage == 0 and plan.data > 1:
        yield (
            "torchtitan's DDP reduces gradients in each forward pass of a step, in buckets of 100"
            f" MiB beside the gradients; measured were buckets of {plan.bucket_mib} MiB"
            f"{'' if plan.gradient_as_bucket_view else ' beside them'}, once a step."
        )
    if plan.replicas > 1 and plan.accumulation > 1:
        yield "torchtitan adds replicas' gradients up in each pass, measured was once a step."
    if plan.offload_parameters == "cpu" and not plan.pin_memory:
        yield "torchtitan pins the host memory of what is offloaded; measured was without."
    if taken.device == "cpu":
        yield "It was measured on CPUs, and torchtitan trains on accelerators alone."
    if plan.accelerator:
        yield f"It was measured on nodes of kind {plan.accelerator}."
    if plan.world_size % taken.hosts:
        yield "`$RANKS_HERE` is how many ranks run on the host where the command is said."
