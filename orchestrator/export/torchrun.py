"""Export for torchrun: a script of plain torch with DDP, FSDP2 or one rank."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import (
    SCRIPT,
    fsdp2_refusals,
    render_template,
    start_command,
    template_values,
    user_tasks,
    wrapper_refusals,
)
from orchestrator.export.source import ExportSource
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment, render_torch

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def refusals(plan: Plan) -> Iterator[str]:
    """Yields the reasons why a script of plain torch cannot express a plan."""
    yield from wrapper_refusals(plan, "torch")
    yield from fsdp2_refusals(plan)


def torch_words(source: ExportSource) -> dict[str, object]:
    """Returns the values that the templates of plain torch need."""
    settings = render_torch(source.plan, source.model)
    fsdp = settings.wrapper == "fsdp2"
    names = ["fully_shard"]
    if settings.offload:
        names.append("CPUOffloadPolicy")
    if settings.compute != "fp32":
        names.append("MixedPrecisionPolicy")
    return template_values(source, settings) | {
        "fsdp": fsdp,
        "fsdp_names": ", ".join(sorted(names)),
        "ddp": settings.wrapper == "ddp",
        "dtype": _DTYPES[settings.compute],
        "autocast": settings.compute != "fp32" and not fsdp,
        "scaler": settings.compute == "fp16",
        "clip": source.spec.train.grad_clip,
    }


def export(source: ExportSource) -> Bundle:
    """Returns the script; `torchrun` starts it if it has several ranks."""
    plan = source.plan
    command = f"python {SCRIPT}" if plan.world_size == 1 else start_command(source)
    text = render_template("torchrun.py.jinja", **torch_words(source), command=command)
    return Bundle(
        format="torchrun",
        files={SCRIPT: text},
        command=command,
        environment=render_environment(plan, source.device),
        caveats=tuple(user_tasks(source)),
    )
