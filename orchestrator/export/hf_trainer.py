"""Export for Hugging Face: `TrainingArguments`, and a script with the stock `Trainer`."""

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.export import deepspeed, scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.settings.render import render_torch
from search_spaces.settings.trainer_refusals import is_divided
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec
from search_spaces.specification.trainer_configs.tables import HF_OPTIMIZERS

ARGUMENTS = "training_arguments.json"


def training_arguments(
    plan: Plan, model: ModelFacts, spec: SweepSpec, device: str
) -> dict[str, Any]:
    """Returns the keyword arguments of `TrainingArguments`, which `HfArgumentParser` can read.

    For DeepSpeed, `deepspeed` is the name of its configuration file.
    """
    train = spec.train
    is_warm_constant = train.schedule == "constant" and train.warmup_steps > 0
    arguments: dict[str, Any] = {
        "output_dir": "trainer",
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "max_steps": train.total_steps,
        "optim": HF_OPTIMIZERS[plan.optimizer],
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        **moments(train),
        "max_grad_norm": train.grad_clip or 0.0,
        "lr_scheduler_type": "constant_with_warmup" if is_warm_constant else train.schedule,
        "warmup_steps": train.warmup_steps,
        "seed": train.seed,
        "bf16": plan.precision == "bf16" and scripts.autocasts(plan),
        "fp16": plan.precision == "fp16",
        "average_tokens_across_devices": True,
        "remove_unused_columns": False,
        "dataloader_num_workers": plan.loader_workers,
        "dataloader_pin_memory": plan.loader_pin_memory,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": device == "cpu",
    }
    if all_recomputed(plan):
        arguments |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
    return arguments | _engine(plan, model, device)


def loading_refusals(plan: Plan) -> Iterator[str]:
    """Yields why arguments alone do not make a plan: transformers divides weights as it loads."""
    if degrees := scripts.divided_by(plan):
        yield (
            "its model must be loaded with `distributed_config=DistributedConfig"
            f"({degrees})`, as the script of `plimsoll export --format hf-trainer` does"
        )


def stock_refusals(plan: Plan, model: ModelFacts) -> Iterator[str]:
    """Yields why a Trainer without our script would take longer steps than were measured.

    The model is one whose loss ignores how many labels Trainer counted.
    """
    parts = plan.data * plan.accumulation
    if parts > 1:
        yield (
            f"{model.architecture} does not divide its loss by the number of labels that Trainer"
            f" counts, so that gradients would be {parts} times too long; `plimsoll export --format"
            " hf-trainer` writes a script whose Trainer weighs micro-batches as measured"
        )


def _engine(plan: Plan, model: ModelFacts, device: str) -> dict[str, Any]:
    if plan.engine == "deepspeed":
        return {"deepspeed": deepspeed.CONFIG}
    backend = {"ddp_backend": "gloo"} if device == "cpu" and plan.world_size > 1 else {}
    if is_divided(plan):
        return backend
    if plan.zero_stage in (2, 3):
        config = {
            "version": 2,
            "reshard_after_forward": plan.zero_stage == 3,
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "cpu_offload": plan.offload_parameters == "cpu",
        }
        return backend | {"fsdp": True, "fsdp_config": config}
    if plan.data > 1:
        return backend | {
            "ddp_bucket_cap_mb": plan.bucket_mib,
            "ddp_find_unused_parameters": model.has_unused_weights,
            "ddp_static_graph": plan.ddp_static_graph,
            "ddp_broadcast_buffers": False,
        }
    return {}


def moments(train: TrainSpec) -> dict[str, float]:
    """Returns the arguments of Adam that the specification sets."""
    betas = dict(zip(("adam_beta1", "adam_beta2"), train.betas or (), strict=False))
    return betas | ({} if train.eps is None else {"adam_epsilon": train.eps})


def all_recomputed(plan: Plan) -> bool:
    """Returns True if Trainer's own switch can recompute the blocks: it covers all or none."""
    offloads = plan.checkpoint_offload or plan.offloaded_blocks
    return plan.checkpoint_ratio == 1.0 and not offloads


def export(source: ExportSource) -> Bundle:
    """Returns the arguments, and a script; `torchrun` starts it if it has several ranks."""
    plan = source.plan
    command = f"python {scripts.SCRIPT}" if plan.world_size == 1 else scripts.start_command(source)
    settings = render_torch(plan, source.model)
    words = scripts.template_values(source, settings)
    # the script must not recompute again what Trainer's own switch recomputes
    words["checkpointed"] = bool(words["checkpointed"]) and not all_recomputed(plan)
    words["fsdp"] = settings.fsdp2 is not None and not words["divided"]
    arguments = training_arguments(plan, source.model, source.spec, source.device)
    files = {
        scripts.SCRIPT: scripts.render_script("hf_trainer.py.jinja", **words, command=command),
        ARGUMENTS: json.dumps(arguments, indent=2) + "\n",
    }
    if plan.engine == "deepspeed":
        config = deepspeed_config(plan, source.model, source.spec, source.device)
        files[deepspeed.CONFIG] = json.dumps(config, indent=2, sort_keys=True) + "\n"
    return Bundle(
        format="hf-trainer",
        files=files,
        command=command,
        environment=scripts.start_environment(plan, source.device),
    )


def deepspeed_config(plan: Plan, model: ModelFacts, spec: SweepSpec, device: str) -> dict[str, Any]:
    """Returns DeepSpeed's configuration, with its own optimizer if states are offloaded."""
    settings = render_deepspeed(plan, model, spec, device)
    config = dict(settings.config)
    if settings.host_optimizer:
        train = spec.train
        rates: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
        rates |= {"betas": train.betas} if train.betas else {}
        rates |= {"eps": train.eps} if train.eps else {}
        config["optimizer"] = {"type": "AdamW", "params": rates}
    return config
