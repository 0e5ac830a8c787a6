"""The sections of torchtitan's TOML.

Source: `torchtitan/config/job_config.py` of torchtitan 0.2.2, and what its `train.py`,
`distributed/` and `models/` make of it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.export.scripts import quotable_title
from orchestrator.export.taken import Taken
from search_spaces.checkpointing import render_checkpoint
from search_spaces.plan import Optimizer, Plan, Schedule
from search_spaces.render import PipelineSettings, render_torch

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


def flavor_of(taken: Taken) -> tuple[str, str] | None:
    """Name and flavor in torchtitan of the model that was measured; None if it has none."""
    model = taken.spec.model
    return None if model.config else FLAVORS.get(model.name)


def every_nth(chosen: Sequence[int], blocks: int) -> int | None:
    """The n for which every nth of the blocks is chosen; None if there is none."""
    nths = range(1, blocks + 1)
    return next((n for n in nths if tuple(chosen) == tuple(range(n - 1, blocks, n))), None)


def sections(taken: Taken) -> dict[str, dict[str, str]]:
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


def _model(taken: Taken) -> dict[str, Value]:
    name, flavor = flavor_of(taken) or ("", "")  # torchtitan stops at an empty name
    return {"name": name, "flavor": flavor}


def _optimizer(taken: Taken) -> dict[str, Value]:
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


def _rate(taken: Taken) -> dict[str, Value]:
    train = taken.spec.train
    told: dict[str, Value] = {
        "warmup_steps": train.warmup_steps,
        "total_steps": train.total_steps,
        "min_lr_factor": 0.0,
    }
    if train.schedule == "constant":
        return told | {"decay_ratio": 0.0}
    return told | {"decay_type": train.schedule}


def _training(taken: Taken) -> dict[str, Value]:
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


def _parallelism(taken: Taken) -> dict[str, Value]:
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


def _checkpoint(taken: Taken) -> dict[str, Value]:
    blocks = taken.model.blocks
    chosen = render_checkpoint(taken.plan, blocks).blocks
    nth = every_nth(chosen, blocks)
    if nth is None or not chosen:
        return {"mode": "none"}
    return {"mode": "full"} if nth == 1 else {"mode": "selective", "selective_ac_option": str(nth)}
