"""Export for torchtitan: TOML for the last release that reads it, see decision 24."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from orchestrator.export.bundle import Bundle
from orchestrator.export.expressed_knobs import ExpressedKnobs, Limit
from orchestrator.export.scripts import (
    pinning_caveats,
    quotable_title,
    render_template,
    start_command,
)
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.plan import Optimizer, Plan, Schedule
from search_spaces.settings.blocks import render_blocks
from search_spaces.settings.render import PipelineSettings, render_environment, render_torch

Value = str | bool | int | float | list[list[str]] | list[str]

# presets that torchtitan has too: name and flavor there (torchtitan/models/*/__init__.py)
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
    "interleaved_zero_bubble": "InterleavedZeroBubble",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_DTYPES = {"bf16": "bfloat16", "fp32": "float32"}
EXPRESSED = ExpressedKnobs(
    engine="torch",
    written=(
        "tensor",
        "sequence_parallel",
        "pipeline",
        "pipeline_schedule",
        "data",
        "zero_stage",
        "replicas",
        "micro_batch",
        "accumulation",
        "checkpoint_ratio",
        "offload_optimizer",
        "offload_parameters",
        "precision",
        "compile",
        "optimizer",
        "loader_workers",
        "loader_pin_memory",
        "allocator",
    ),
    in_caveats=(
        "accelerator",
        "attention",
        "batching",
        "pin_memory",
        "bucket_mib",
        "gradient_as_bucket_view",
    ),
    limits=(
        Limit(knob="precision", values=tuple(_DTYPES), reason="torchtitan has no loss scaling"),
        Limit(
            knob="optimizer",
            values=tuple(IMPLEMENTATIONS),
            reason="torchtitan has AdamW, fused and foreach",
        ),
        Limit(
            knob="compression",
            values=("none",),
            reason="torchtitan does not compress gradients",
        ),
        Limit(
            knob="checkpoint_mode",
            values=("full",),
            reason="torchtitan's saves every other matmul's output",
        ),
        Limit(
            knob="checkpoint_offload",
            values=(False,),
            reason="torchtitan does not offload activations",
        ),
    ),
)
VERSION = "0.2.2"  # its source is where the keys and their meaning come from
CONFIG = "train.toml"


def flavor_of(source: ExportSource) -> tuple[str, str] | None:
    """Returns torchtitan's name and flavor of the measured model; None if it lacks the model."""
    model = source.spec.model
    return None if model.config else FLAVORS.get(model.name)


def every_nth(chosen: Sequence[int], blocks: int) -> int | None:
    """Returns the n for which `chosen` is every nth of the blocks; None if there is none."""
    nths = range(1, blocks + 1)
    return next((n for n in nths if tuple(chosen) == tuple(range(n - 1, blocks, n))), None)


def sections(source: ExportSource) -> dict[str, dict[str, str]]:
    """Returns the sections of the file: TOML values by key, by section."""
    values: dict[str, dict[str, Value]] = {
        "job": {"description": quotable_title(source)},
        "model": _model(source),
        "optimizer": _optimizer(source),
        "lr_scheduler": _lr_scheduler(source),
        "training": _training(source),
        "training.dataloader": {
            "num_workers": source.plan.loader_workers,
            "pin_memory": source.plan.loader_pin_memory,
        },
        "parallelism": _parallelism(source),
        "activation_checkpoint": _checkpoint(source),
        "compile": {"enable": source.plan.compile, "components": ["model"]},
        "debug": {"seed": source.spec.train.seed},
    }
    return {
        name: {key: _toml(value) for key, value in keys.items()} for name, keys in values.items()
    }


def _toml(value: Value) -> str:
    # for these types JSON equals TOML, except for infinity
    return "inf" if value == float("inf") else json.dumps(value)


def _model(source: ExportSource) -> dict[str, Value]:
    name, flavor = flavor_of(source) or ("", "")  # torchtitan stops at an empty name
    return {"name": name, "flavor": flavor}


def _optimizer(source: ExportSource) -> dict[str, Value]:
    train = source.spec.train
    return {
        "name": "AdamW",
        "lr": train.learning_rate,
        "beta1": 0.9,  # torch's defaults, as measured
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": train.weight_decay,
        "implementation": IMPLEMENTATIONS[source.plan.optimizer],
    }


def _lr_scheduler(source: ExportSource) -> dict[str, Value]:
    train = source.spec.train
    keys: dict[str, Value] = {
        "warmup_steps": train.warmup_steps,
        "total_steps": train.total_steps,
        "min_lr_factor": 0.0,
    }
    if train.schedule == "constant":
        return keys | {"decay_ratio": 0.0}
    return keys | {"decay_type": train.schedule}


def _training(source: ExportSource) -> dict[str, Value]:
    plan, train = source.plan, source.spec.train
    # with a pipeline, the local batch is all micro-batches of a step
    passes = plan.accumulation if plan.pipeline > 1 else 1
    return {
        "local_batch_size": plan.micro_batch * passes,
        "global_batch_size": plan.global_batch,
        "seq_len": train.sequence_length,
        "max_norm": train.grad_clip or float("inf"),
        "steps": train.total_steps,
        "enable_cpu_offload": plan.offload_parameters == "cpu",
        "dtype": "float32",  # master weights
        "mixed_precision_param": _DTYPES[plan.precision],
        "mixed_precision_reduce": "float32",
    }


def _parallelism(source: ExportSource) -> dict[str, Value]:
    plan = source.plan
    sharded = plan.zero_stage in (2, 3)
    replicas = plan.replicas if sharded else plan.data
    keys: dict[str, Value] = {
        "data_parallel_replicate_degree": replicas,
        "data_parallel_shard_degree": plan.data // replicas,
        "fsdp_reshard_after_forward": "always" if plan.zero_stage == 3 else "never",
        "tensor_parallel_degree": plan.tensor,
        "pipeline_parallel_degree": plan.pipeline,
    }
    pipeline = render_torch(plan, source.model).pipeline
    return keys if pipeline is None else keys | _pipeline(plan, pipeline)


def _pipeline(plan: Plan, settings: PipelineSettings) -> dict[str, Value]:
    stages = [[f"layers.{block}" for block in stage] for stage in settings.stages]
    stages[0].insert(0, "tok_embeddings")
    stages[-1] += ["norm", "output"]
    return {
        "pipeline_parallel_schedule": _SCHEDULES[settings.schedule],
        "pipeline_parallel_microbatch_size": plan.micro_batch,
        "module_fqns_per_model_part": stages,
    }


def _checkpoint(source: ExportSource) -> dict[str, Value]:
    blocks = source.model.blocks
    chosen = render_blocks(source.plan, blocks).recomputed
    nth = every_nth(chosen, blocks)
    if nth is None or not chosen:
        return {"mode": "none"}
    return {"mode": "full"} if nth == 1 else {"mode": "selective", "selective_ac_option": str(nth)}


def refusals(plan: Plan) -> Iterator[str]:
    """Yields the combinations of knobs that torchtitan cannot train."""
    yield from _layout(plan)
    yield from _checkpointing(plan)


def export(source: ExportSource) -> Bundle:
    """Returns the configuration, and the command that starts torchtitan with it.

    Raises:
        UserError: If torchtitan cannot train this model with the plan.
    """
    if misfits := list(_misfits(source)):
        number = source.record.number
        raise UserError(
            f"torchtitan cannot express the plan of trial {number}: {'; '.join(misfits)}"
        )
    command = start_command(source, f"-m torchtitan.train --job.config_file {CONFIG}")
    caveats = tuple(_caveats(source))
    text = render_template(
        "torchtitan.toml.jinja",
        title=quotable_title(source),
        command=command,
        version=VERSION,
        caveats=[quotable(sentence) for sentence in caveats],
        sections=sections(source),
    )
    return Bundle(
        format="torchtitan",
        files={CONFIG: text},
        command=command,
        environment=render_environment(source.plan, source.device),
        caveats=caveats,
        local=False,
    )


def quotable(sentence: str) -> str:
    """Returns a sentence that is safe in a comment, for any names."""
    return ascii(sentence)[1:-1]


def _layout(plan: Plan) -> Iterator[str]:
    split = [name for name in ("tensor", "pipeline") if getattr(plan, name) > 1]
    sharded = plan.zero_stage in (2, 3) and plan.data > plan.replicas
    if plan.zero_stage in (2, 3) and not sharded:
        yield (f"zero_stage is {plan.zero_stage} over one rank: torchtitan shards over two or more")
    if plan.zero_stage == 0 and plan.data > 1 and split:
        yield (
            f"data is {plan.data} and zero_stage 0 with {' and '.join(split)}: torchtitan"
            " replicates whole models"
        )
    if not sharded and split and plan.precision != "fp32":
        yield (
            f"precision is {plan.precision} with {' and '.join(split)} but without FSDP:"
            " torchtitan then computes in fp32"
        )
    if plan.tensor > 1 and not plan.sequence_parallel:
        yield (
            f"tensor is {plan.tensor} without sequence_parallel: torchtitan always splits the"
            " sequence"
        )


def _checkpointing(plan: Plan) -> Iterator[str]:
    ratio = plan.checkpoint_ratio
    if not ratio:
        return
    if abs(ratio * round(1 / ratio) - 1) > 0.02:
        yield f"checkpoint_ratio is {ratio:g}: torchtitan recomputes all blocks or every nth"
    elif ratio < 1 and plan.pipeline > 1:
        yield (
            f"checkpoint_ratio is {ratio:g} with a pipeline: torchtitan counts blocks in each rank"
        )


def _misfits(source: ExportSource) -> Iterator[str]:
    """Yields the reasons that follow from the model or the specification."""
    plan, train, blocks = source.plan, source.spec.train, source.model.blocks
    if source.spec.model.task != "causal-lm":
        yield f"model.task is {source.spec.model.task}: torchtitan trains the next token alone"
    if train.method != "full":
        yield f"train.method is {train.method}"
    if train.decay == "stock" and train.weight_decay:
        yield "train.decay is stock: torchtitan's weight decay is of all weights"
    if train.sequence_length % plan.tensor:
        yield f"train.sequence_length {train.sequence_length} is not a multiple of tensor"
    chosen = render_blocks(plan, blocks).recomputed
    if chosen and every_nth(chosen, blocks) is None:
        yield f"{len(chosen)} of {blocks} blocks are recomputed, which is not every nth"
    flavor = flavor_of(source)
    if flavor is not None and flavor[0] == "qwen3" and plan.pipeline > 1:
        yield "torchtitan has no pipelines for qwen3"


def _caveats(source: ExportSource) -> Iterator[str]:
    plan, train = source.plan, source.spec.train
    yield (
        f"This file is for torchtitan {VERSION}, the last release that reads TOML; 0.3.0 is"
        " configured in Python. Its parser read files like this one, but none was trained with."
    )
    if flavor_of(source) is None:
        yield (
            f"torchtitan has no flavor for {source.spec.model.name} as measured (it has"
            f" {', '.join(FLAVORS)}): set your own in [model], which is empty."
        )
    yield (
        "Model, weights and data are torchtitan's, so losses differ, and speed and peak may differ"
        " too. Set your dataset in [training] and the folder of your tokenizer in [model]"
        " hf_assets_path."
    )
    yield (
        f"Samples were {plan.batching}; torchtitan's dataset is one text, cut every"
        f" {train.sequence_length} tokens."
    )
    if plan.attention != "sdpa":
        yield f"Attention was `{plan.attention}`; a flavor of torchtitan has its own (sdpa)."
    if train.warmup_steps:
        yield "The learning-rate warm-up is one step ahead of the measured one."
    if plan.zero_stage == 0 and plan.data > 1:
        yield (
            "torchtitan's DDP reduces gradients in each forward pass of a step, in buckets of 100"
            " MiB in addition to the gradients. The measured run reduced them once per step, in"
            f" buckets of {plan.bucket_mib} MiB"
            f"{'' if plan.gradient_as_bucket_view else ' in addition to the gradients'}."
        )
    if plan.replicas > 1 and plan.accumulation > 1:
        yield (
            "torchtitan sums the gradients of replicas in each pass; the measured run did so once"
            " per step."
        )
    yield from pinning_caveats(plan, "torchtitan")
    if source.device == "cpu":
        yield "It was measured on CPUs; torchtitan trains on accelerators only."
    if plan.accelerator:
        yield f"It was measured on nodes of kind {plan.accelerator}."
    if plan.world_size % source.hosts:
        yield "`$RANKS_HERE` is the number of ranks on the host that runs the command."
