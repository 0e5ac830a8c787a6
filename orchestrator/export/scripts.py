"""Rendering of script templates, with the values and sentences that all scripts share."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.export.source import ExportSource
from orchestrator.report.labels import plan_words
from search_spaces.plan import Engine, Plan
from search_spaces.settings.deepspeed_config import DeepSpeedSettings
from search_spaces.settings.render import TorchSettings

SCRIPT = "train.py"
HEAD = "$HEAD"  # in commands that run on several hosts
_PORT = 29500  # torchrun's default
_BATCHING = {
    "padded": "padded to the sequence length",
    "grouped": "grouped by similar length and padded to the longest of them",
    "packed": "packed end to end, with their position ids",
}


def render_template(template: str, **words: object) -> str:
    """Renders a template of `orchestrator/export/templates`."""
    # no HTML escapes: the templates are Python and YAML
    environment = Environment(
        loader=PackageLoader("orchestrator.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(words)


def start_command(source: ExportSource, script: str = SCRIPT) -> str:
    """Returns the torchrun command that starts the ranks; several hosts each run it."""
    ranks, hosts = source.plan.world_size, source.hosts
    if hosts == 1:
        return f"torchrun --nproc-per-node {ranks} {script}"
    per_host = str(ranks // hosts) if ranks % hosts == 0 else "$RANKS_HERE"
    return (
        f"torchrun --nnodes {hosts} --nproc-per-node {per_host} --rdzv-backend c10d"
        f" --rdzv-endpoint {HEAD}:{_PORT} {script}"
    )


def wrapper_refusals(plan: Plan, engine: Engine) -> Iterator[str]:
    """Yields the reasons why a script that wraps the whole model cannot express a plan.

    Args:
        plan: The plan.
        engine: The engine that wraps the model.
    """
    if plan.engine != engine:
        yield f"its engine is {plan.engine}"
    if plan.tensor > 1:
        yield f"tensor is {plan.tensor}: splitting blocks takes more than a wrapper"
    if plan.pipeline > 1:
        yield f"pipeline is {plan.pipeline}: stages take more than a wrapper"
    if plan.checkpoint_mode == "selective" and plan.checkpoint_ratio > 0:
        yield (
            "checkpoint_mode is selective: blocks modify in place what torch's own contexts save"
        )


def fsdp2_refusals(plan: Plan) -> Iterator[str]:
    """Yields the knobs that a script with FSDP2 does not support."""
    sharded = plan.zero_stage in (2, 3)
    if sharded and plan.optimizer == "adamw_8bit":
        yield "optimizer is adamw_8bit, which does not support FSDP2's shards"
    if sharded and plan.precision == "fp16":
        yield "precision is fp16 with FSDP2, for which torch keeps a loss scale per rank"


def template_values(
    source: ExportSource, settings: TorchSettings | DeepSpeedSettings
) -> dict[str, object]:
    """Returns the values that the templates of both engines need."""
    plan, train = source.plan, source.spec.train
    return {
        "title": quotable_title(source),
        "plan": plan,
        "train": train,
        "settings": settings,
        "device": source.device,
        "checkpointed": bool(settings.checkpoint.blocks),
        "rates": f"lr={train.learning_rate!r}, weight_decay={train.weight_decay!r}",
        "schedule": train.schedule != "constant" or train.warmup_steps > 0,
        "falling": max(train.total_steps - train.warmup_steps, 1),
        "batching_words": _BATCHING[plan.batching],
    }


def quotable_title(source: ExportSource) -> str:
    """Returns a title of the plan that is safe in a docstring or a comment, for any names."""
    title = f"Trial {source.record.number} of study {source.study}: {plan_words(source.plan)}."
    return ascii(title)[1:-1].replace('"', "'")


def user_tasks(source: ExportSource, batches: str = "make_steps") -> Iterator[str]:
    """Yields sentences on what every script leaves to its user.

    Args:
        source: The measured plan.
        batches: Name of the script's function that makes batches.
    """
    plan, spec = source.plan, source.spec
    yield (
        f"Put your model and data into `make_model` and `{batches}`. Until then they return the"
        " measured ones and need Plimsoll; `missing` checks what they need, so change it with them."
    )
    if plan.attention != "eager":
        yield f"Attention was `{plan.attention}`: load your model with it (`attn_implementation`)."
    if plan.batching != "padded":
        yield f"Micro-batches were {plan.batching}: yours must be too, for the same speed."
    if plan.loader_workers or plan.loader_pin_memory:
        yield (
            f"Batches came from {plan.loader_workers} loader processes per rank"
            f"{', in pinned memory' if plan.loader_pin_memory else ''}; the script makes them in"
            " the rank itself."
        )
    if spec.train.method == "lora":
        yield "LoRA adapters were trained: `make_model` must return your model with them."
    if plan.accelerator:
        yield f"It was measured on nodes of kind {plan.accelerator}."
    if plan.world_size % source.hosts:
        yield (
            f"{plan.world_size} ranks ran on {source.hosts} hosts, with different numbers per host:"
            " `$RANKS_HERE` is the number of ranks on the host that runs the command."
        )
