"""Export for torchrun: a script of plain torch with DDP, FSDP2 or one rank."""

from __future__ import annotations

from orchestrator.export.bundle import Bundle
from orchestrator.export.expressed_knobs import ExpressedKnobs
from orchestrator.export.scripts import (
    SCRIPT,
    SCRIPT_KNOBS,
    SCRIPT_LIMITS,
    USER_KNOBS,
    literal,
    render_script,
    start_command,
    template_values,
    user_tasks,
)
from orchestrator.export.source import ExportSource
from search_spaces.settings.render import render_environment, render_torch

EXPRESSED = ExpressedKnobs(
    engine="torch",
    written=(
        *SCRIPT_KNOBS,
        "replicas",
        "pin_memory",
        "gradient_as_bucket_view",
        "ddp_static_graph",
        "compression",
        "prefetch_blocks",
        "reshard_ranks",
        "gathered_between_passes",
    ),
    in_caveats=USER_KNOBS,
    limits=SCRIPT_LIMITS,
)


def torch_words(source: ExportSource) -> dict[str, object]:
    """Returns the values that the templates of plain torch need."""
    settings = render_torch(source.plan, source.model)
    wrapping = settings.fsdp2 or settings.ddp
    return template_values(source, settings) | {
        "fsdp": settings.fsdp2 is not None,
        "ddp": settings.ddp is not None,
        "wrapping": None if wrapping is None else literal(wrapping),
        "group": "dist.group.WORLD" if source.plan.data > 1 else "None",
        "scaler": settings.compute == "fp16",
        "clip": source.spec.train.grad_clip,
    }


def export(source: ExportSource) -> Bundle:
    """Returns the script; `torchrun` starts it if it has several ranks."""
    plan = source.plan
    command = f"python {SCRIPT}" if plan.world_size == 1 else start_command(source)
    text = render_script("torchrun.py.jinja", **torch_words(source), command=command)
    return Bundle(
        format="torchrun",
        files={SCRIPT: text},
        command=command,
        environment=render_environment(plan, source.device),
        caveats=tuple(user_tasks(source)),
    )
