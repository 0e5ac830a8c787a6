"""Hugging Face's `TrainingArguments`, and a script with its stock `Trainer`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.export import deepspeed
from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import (
    SCRIPT,
    filled,
    script_words,
    start_command,
    unsplit,
    what_is_yours,
)
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.render import (
    Environment,
    render_deepspeed,
    render_environment,
    render_torch,
)
from search_spaces.spec.schema import SweepSpec
from search_spaces.spec.sections import TrainSpec

ARGUMENTS = "training_arguments.json"

_OPTIMIZERS = {
    "adamw_fused": "adamw_torch_fused",
    "adamw_foreach": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
}


def refusals(plan: Plan) -> Iterator[str]:
    """Why Trainer cannot train this plan, a reason each."""
    yield from unsplit(plan, plan.engine)
    if plan.batching == "packed":
        yield "batching is packed: Trainer takes the same number of micro-batches in each step"
    if plan.replicas > 1:
        yield f"replicas is {plan.replicas}: Trainer shards over all ranks"
    if plan.compression != "none":
        yield f"compression is {plan.compression}: Trainer sends gradients as they are"
    if plan.optimizer == "adafactor":
        yield "optimizer is adafactor: Trainer's own is another one than torch's that was measured"
    if "nvme" in (plan.offload_optimizer, plan.offload_parameters):
        yield "states or weights lie on NVMe, which was measured with DeepSpeed's own optimizer"
    sharded = plan.engine == "torch" and plan.zero_stage in (2, 3)
    if sharded and plan.optimizer == "adamw_8bit":
        yield "optimizer is adamw_8bit, which takes no shards of FSDP2"
    if sharded and plan.precision == "fp16":
        yield "precision is fp16 with FSDP2, whose loss scale torch keeps rank by rank"


def training_arguments(plan: Plan, spec: SweepSpec, device: str) -> dict[str, Any]:
    """What `TrainingArguments(**...)` takes, and `HfArgumentParser` reads as JSON.

    Of a plan of DeepSpeed `deepspeed` names the file of its configuration.
    """
    train = spec.train
    told: dict[str, Any] = {
        "output_dir": "trainer",
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.accumulation,
        "max_steps": train.total_steps,
        "optim": _OPTIMIZERS[plan.optimizer],
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        "max_grad_norm": train.grad_clip or 0.0,
        "lr_scheduler_type": _schedule(train),
        "warmup_steps": train.warmup_steps,
        "seed": train.seed,
        "bf16": plan.precision == "bf16",
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
        told |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
    return told | _engine(plan, device)


def misfits(plan: Plan, model: ModelFacts, device: str) -> Iterator[str]:
    """Why Trainer cannot train the plan with this model, or on these devices, a reason each."""
    if model.vocab_size is None:
        yield (
            f"{model.name} is a function with batches of its own, and Trainer trains models of"
            " transformers"
        )
    if device == "cpu" and plan.engine == "torch" and plan.zero_stage:
        yield "on a CPU accelerate replaces FSDP by DDP and says nothing"


def _engine(plan: Plan, device: str) -> dict[str, Any]:
    if plan.engine == "deepspeed":
        return {"deepspeed": deepspeed.CONFIG}
    backend = {"ddp_backend": "gloo"} if device == "cpu" and plan.data > 1 else {}
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
            "ddp_find_unused_parameters": False,
            "ddp_broadcast_buffers": False,
        }
    return {}


def _schedule(train: TrainSpec) -> str:
    warm = train.schedule == "constant" and train.warmup_steps > 0
    return "constant_with_warmup" if warm else train.schedule


def all_recomputed(plan: Plan) -> bool:
    """Whether Trainer's own switch says what is recomputed: it knows all blocks or none."""
    return plan.checkpoint_ratio == 1.0 and not plan.checkpoint_offload


def export(taken: ExportSource) -> Bundle:
    """The arguments, and a script that `torchrun` starts; a plan of one rank without it.

    Raises:
        UserError: If Trainer cannot train the model.
    """
    if reasons := list(misfits(taken.plan, taken.model, taken.device)):
        number = taken.record.number
        raise UserError(f"hf-trainer cannot say the plan of trial {number}: {'; '.join(reasons)}")
    plan = taken.plan
    command = f"python {SCRIPT}" if plan.world_size == 1 else start_command(taken)
    settings = render_torch(plan, taken.model)
    words = script_words(taken, settings)
    # what Trainer's own switch does is not done twice
    words["checkpointed"] = bool(words["checkpointed"]) and not all_recomputed(plan)
    files = {
        SCRIPT: filled("hf_trainer.py.jinja", **words, command=command),
        ARGUMENTS: json.dumps(training_arguments(plan, taken.spec, taken.device), indent=2) + "\n",
    }
    if plan.engine == "deepspeed":
        config = deepspeed_config(plan, taken.model, taken.spec, taken.device)
        files[deepspeed.CONFIG] = json.dumps(config, indent=2, sort_keys=True) + "\n"
    return Bundle(
        format="hf-trainer",
        files=files,
        command=command,
        environment=_environment(taken),
        unsaid=tuple(_unsaid(taken)),
    )


def deepspeed_config(plan: Plan, model: ModelFacts, spec: SweepSpec, device: str) -> dict[str, Any]:
    """DeepSpeed's configuration; what is offloaded is updated by an optimizer of its own."""
    settings = render_deepspeed(plan, model, spec, device)
    config = dict(settings.config)
    if settings.host_optimizer:
        rates = {"lr": spec.train.learning_rate, "weight_decay": spec.train.weight_decay}
        config["optimizer"] = {"type": "AdamW", "params": rates}
    return config


def _environment(taken: ExportSource) -> Environment:
    if taken.plan.engine == "deepspeed":
        return deepspeed.environment_of(taken)
    return render_environment(taken.plan, taken.device)


def _unsaid(taken: ExportSource) -> Iterator[str]:
    plan = taken.plan
    first, *rest = what_is_yours(taken)
    yield first.replace("make_steps", "make_batches")
    yield from rest
    if plan.checkpoint_ratio > 0 and not all_recomputed(plan):
        yield (
            f"{100 * plan.checkpoint_ratio:.0f} % of the blocks are recomputed by the script:"
            " Trainer's own switch knows all of them or none."
        )
    if plan.compile:
        yield "Blocks are compiled by the script, each by itself: Trainer would compile the model."
    replicated = plan.engine == "torch" and plan.zero_stage == 0 and plan.data > 1
    if replicated and plan.gradient_as_bucket_view:
        yield "Gradients lay in DDP's buckets; Trainer has both, which takes their size once more."
    yield (
        "Trainer leaves biases and norms without weight decay; the script lets all weights decay,"
        " as when the plan was measured."
    )
    if plan.optimizer == "adamw_foreach":
        yield "AdamW's loop (foreach) stands in the script: `optim` has no word for it."
