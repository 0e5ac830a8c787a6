"""Export for Hugging Face: `TrainingArguments`, and a script with the stock `Trainer`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from orchestrator.export import accelerate, deepspeed, scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.expressed_knobs import ExpressedKnobs, Limit
from orchestrator.export.source import ExportSource
from search_spaces.errors import UserError
from search_spaces.facts import ModelFacts
from search_spaces.plan import Plan
from search_spaces.settings.deepspeed_config import render_deepspeed
from search_spaces.settings.render import render_torch
from search_spaces.specification.schema import SweepSpec
from search_spaces.specification.sections import TrainSpec

ARGUMENTS = "training_arguments.json"

_OPTIMIZERS = {
    "adamw_fused": "adamw_torch_fused",
    "adamw_foreach": "adamw_torch",
    "adamw_8bit": "adamw_bnb_8bit",
}
_ENGINE_OF_NVME = "NVMe was measured with DeepSpeed's own optimizer, which Trainer lacks"
_WRITTEN = (*scripts.SCRIPT_KNOBS, "loader_workers", "loader_pin_memory")
_LIMITS = (
    *(limit for limit in scripts.SCRIPT_LIMITS if limit.knob != "optimizer"),
    Limit(
        knob="batching",
        values=("padded", "grouped"),
        reason="Trainer needs the same number of micro-batches in every step",
    ),
    Limit(
        knob="optimizer",
        values=tuple(_OPTIMIZERS),
        reason="Trainer's differs from torch's, which was measured",
    ),
)
TORCH = ExpressedKnobs(
    engine="torch",
    written=(*_WRITTEN, "ddp_static_graph"),
    in_caveats=(*scripts.USER_KNOBS, "pin_memory", "gradient_as_bucket_view"),
    limits=(
        *_LIMITS,
        Limit(knob="replicas", values=(1,), reason="Trainer shards over all ranks"),
        Limit(knob="compression", values=("none",), reason="Trainer does not compress gradients"),
    ),
)
DEEPSPEED = ExpressedKnobs(
    engine="deepspeed",
    written=(*_WRITTEN, *deepspeed.CONFIG_KNOBS),
    in_caveats=scripts.USER_KNOBS,
    limits=(
        *_LIMITS,
        Limit(knob="offload_optimizer", values=("none", "cpu"), reason=_ENGINE_OF_NVME),
        Limit(knob="offload_parameters", values=("none", "cpu"), reason=_ENGINE_OF_NVME),
    ),
)


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
        "optim": _OPTIMIZERS[plan.optimizer],
        "learning_rate": train.learning_rate,
        "weight_decay": train.weight_decay,
        **_moments(train),
        "max_grad_norm": train.grad_clip or 0.0,
        "lr_scheduler_type": "constant_with_warmup" if is_warm_constant else train.schedule,
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
        arguments |= {
            "gradient_checkpointing": True,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
    return arguments | _engine(plan, model, device)


def model_refusals(plan: Plan, model: ModelFacts, device: str) -> Iterator[str]:
    """Yields the reasons why Trainer cannot train a plan with this model or on this device."""
    if model.vocab_size is None:
        yield (
            f"{model.name} makes its own batches, and the script for Trainer has Plimsoll's data"
        )
    if device == "cpu" and plan.engine == "torch":
        yield from accelerate.cpu_refusals(plan)


def decay_refusals(plan: Plan, train: TrainSpec, *, stock: bool) -> Iterator[str]:
    """Yields why other weights would decay than did when the plan was measured.

    Args:
        plan: The plan.
        train: Says which weights decay.
        stock: The Trainer is the stock one, not the script's.
    """
    if not train.weight_decay:
        return
    by_deepspeed = plan.engine == "deepspeed" and plan.offload_optimizer != "none"
    if train.decay == "stock" and by_deepspeed:
        yield "train.decay is stock: with an offloaded optimizer DeepSpeed's own decays all weights"
    if train.decay == "all" and stock and not by_deepspeed:
        yield (
            "train.decay is all, and the stock Trainer leaves biases and norms without decay:"
            " measure with train.decay: stock, or take the script of `plimsoll export --format"
            " hf-trainer`"
        )


def stock_refusals(plan: Plan, model: ModelFacts) -> Iterator[str]:
    """Yields why a Trainer without our script would take longer steps than were measured.

    Args:
        plan: The plan.
        model: A model whose loss ignores how many labels Trainer counted.
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
            "ddp_find_unused_parameters": model.has_unused_weights,
            "ddp_static_graph": plan.ddp_static_graph,
            "ddp_broadcast_buffers": False,
        }
    return {}


def _moments(train: TrainSpec) -> dict[str, float]:
    betas = dict(zip(("adam_beta1", "adam_beta2"), train.betas or (), strict=False))
    return betas | ({} if train.eps is None else {"adam_epsilon": train.eps})


def all_recomputed(plan: Plan) -> bool:
    """Returns True if Trainer's own switch can recompute the blocks: it covers all or none."""
    return plan.checkpoint_ratio == 1.0 and not plan.checkpoint_offload


def export(source: ExportSource) -> Bundle:
    """Returns the arguments, and a script; `torchrun` starts it if it has several ranks.

    Raises:
        UserError: If Trainer cannot train the model.
    """
    reasons = [
        *model_refusals(source.plan, source.model, source.device),
        *decay_refusals(source.plan, source.spec.train, stock=False),
    ]
    if reasons:
        number = source.record.number
        raise UserError(
            f"hf-trainer cannot express the plan of trial {number}: {'; '.join(reasons)}"
        )
    plan = source.plan
    command = f"python {scripts.SCRIPT}" if plan.world_size == 1 else scripts.start_command(source)
    settings = render_torch(plan, source.model)
    words = scripts.template_values(source, settings)
    # the script must not recompute again what Trainer's own switch recomputes
    words["checkpointed"] = bool(words["checkpointed"]) and not all_recomputed(plan)
    words["fsdp"] = settings.fsdp2 is not None and plan.engine == "torch"
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
        caveats=tuple(_caveats(source)),
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


def _caveats(source: ExportSource) -> Iterator[str]:
    plan = source.plan
    yield from scripts.user_tasks(source, batches="make_batches")
    yield from scripts.pinning_caveats(plan, "Trainer")
    if plan.checkpoint_ratio > 0 and not all_recomputed(plan):
        yield (
            f"The script recomputes {100 * plan.checkpoint_ratio:.0f} % of the blocks itself;"
            " Trainer can only recompute all of them or none."
        )
    if plan.compile:
        yield "The script compiles each block separately; Trainer would compile the whole model."
    replicated = plan.engine == "torch" and plan.zero_stage == 0 and plan.data > 1
    if replicated and plan.gradient_as_bucket_view:
        yield (
            "The measured gradients were views of DDP's buckets. Trainer keeps both, which takes"
            " the size of the gradients once more."
        )
    if source.spec.train.decay == "all":
        yield (
            "Trainer exempts biases and norms from weight decay; the script applies it to all"
            " weights, as measured."
        )
    if plan.engine == "torch" and plan.zero_stage and plan.accumulation > 1:
        yield (
            "The measured run reduced gradients in each micro-batch. Trainer keeps them whole until"
            " the last of a step, which takes the size of the trained weights in fp32."
        )
        if plan.zero_stage == 2:
            yield (
                "The measured run gathered weights once a step. Trainer gathers them in each"
                " micro-batch."
            )
    if plan.optimizer == "adamw_foreach":
        yield "The foreach AdamW is in the script: `optim` has no value for it."
