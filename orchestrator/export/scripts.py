"""Scripts from templates, and what they have in common."""

from __future__ import annotations

from collections.abc import Iterator

from jinja2 import Environment, PackageLoader, StrictUndefined

from orchestrator.export.source import ExportSource
from orchestrator.report.labels import plan_words
from search_spaces.plan import Engine, Plan
from search_spaces.settings.render import DeepSpeedSettings, TorchSettings

SCRIPT = "train.py"
HEAD = "$HEAD"  # in commands that are said on several hosts
_PORT = 29500  # torchrun's own, where none is named
_BATCHING = {
    "padded": "padded to the sequence length",
    "grouped": "samples of like lengths, padded to the longest of them,",
    "packed": "packed one sample behind the other, with their position ids,",
}


def filled(template: str, **words: object) -> str:
    """The text of a template of `orchestrator/export/templates` with these words in it."""
    # Python is written, not HTML
    environment = Environment(
        loader=PackageLoader("orchestrator.export"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(words)


def start_command(taken: ExportSource, script: str = SCRIPT) -> str:
    """How torchrun starts the script's ranks; on several hosts, what is said on each of them."""
    ranks, hosts = taken.plan.world_size, taken.hosts
    if hosts == 1:
        return f"torchrun --nproc-per-node {ranks} {script}"
    here = str(ranks // hosts) if ranks % hosts == 0 else "$RANKS_HERE"
    return (
        f"torchrun --nnodes {hosts} --nproc-per-node {here} --rdzv-backend c10d"
        f" --rdzv-endpoint {HEAD}:{_PORT} {script}"
    )


def unsplit(plan: Plan, engine: Engine) -> Iterator[str]:
    """Why a script that wraps the whole model by this engine cannot say a plan, a reason each."""
    if plan.engine != engine:
        yield f"its engine is {plan.engine}"
    if plan.tensor > 1:
        yield f"tensor is {plan.tensor}: blocks that are split take more than a wrapper"
    if plan.pipeline > 1:
        yield f"pipeline is {plan.pipeline}: stages take more than a wrapper"
    if plan.checkpoint_mode == "selective" and plan.checkpoint_ratio > 0:
        yield (
            "checkpoint_mode is selective: what torch's own contexts keep, blocks change in place"
        )


def script_words(
    taken: ExportSource, settings: TorchSettings | DeepSpeedSettings
) -> dict[str, object]:
    """What the templates of both engines ask for."""
    plan, train = taken.plan, taken.spec.train
    return {
        "title": quotable_title(taken),
        "plan": plan,
        "train": train,
        "settings": settings,
        "device": taken.device,
        "checkpointed": bool(settings.checkpoint.blocks),
        "rates": f"lr={train.learning_rate!r}, weight_decay={train.weight_decay!r}",
        "schedule": train.schedule != "constant" or train.warmup_steps > 0,
        "falling": max(train.total_steps - train.warmup_steps, 1),
        "batching_words": _BATCHING[plan.batching],
    }


def quotable_title(taken: ExportSource) -> str:
    """Which plan it is, fit for a docstring or a comment, whatever names are in it."""
    title = f"Trial {taken.record.number} of study {taken.study}: {plan_words(taken.plan)}."
    return ascii(title)[1:-1].replace('"', "'")


def what_is_yours(taken: ExportSource) -> Iterator[str]:
    """What any script leaves to its user, a sentence each."""
    plan, spec = taken.plan, taken.spec
    yield (
        "Your model and data go into `make_model` and `make_steps`. As they stand they give what"
        " the plan was measured with, and need Plimsoll to be installed; `missing` goes with them."
    )
    if plan.attention != "eager":
        yield f"Attention was `{plan.attention}`: load your model with it (`attn_implementation`)."
    if plan.batching != "padded":
        yield f"Micro-batches were {plan.batching}: yours have to be, for the same speed."
    if plan.loader_workers or plan.loader_pin_memory:
        yield (
            f"Batches came from {plan.loader_workers} loader processes per rank"
            f"{', in pinned memory' if plan.loader_pin_memory else ''}; the script makes them in"
            " the rank itself."
        )
    if spec.train.method == "lora":
        yield "Adapters (LoRA) were trained: `make_model` has to return your model with them."
    if plan.accelerator:
        yield f"It was measured on nodes of kind {plan.accelerator}."
    if plan.world_size % taken.hosts:
        yield (
            f"{plan.world_size} ranks ran on {taken.hosts} hosts, not as many on each:"
            " `$RANKS_HERE` is how many run on the host where the command is said."
        )
