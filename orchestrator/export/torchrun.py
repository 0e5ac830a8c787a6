"""A script of plain torch: DDP, FSDP2 or one rank, with the whole stack of blocks."""

from __future__ import annotations

from collections.abc import Iterator

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
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment, render_torch

_DTYPES = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}


def refusals(plan: Plan) -> Iterator[str]:
    """Why a script of plain torch cannot say this plan, a reason each."""
    yield from unsplit(plan, "torch")
    sharded = plan.zero_stage in (2, 3)
    if sharded and plan.optimizer == "adamw_8bit":
        yield "optimizer is adamw_8bit, which takes no shards of FSDP2"
    if sharded and plan.precision == "fp16":
        yield "precision is fp16 with FSDP2, whose loss scale torch keeps rank by rank"


def torch_words(taken: ExportSource) -> dict[str, object]:
    """What the templates of plain torch ask for."""
    settings = render_torch(taken.plan, taken.model)
    fsdp = settings.wrapper == "fsdp2"
    names = ["fully_shard"]
    if settings.offload:
        names.append("CPUOffloadPolicy")
    if settings.compute != "fp32":
        names.append("MixedPrecisionPolicy")
    return script_words(taken, settings) | {
        "fsdp": fsdp,
        "fsdp_names": ", ".join(sorted(names)),
        "ddp": settings.wrapper == "ddp",
        "dtype": _DTYPES[settings.compute],
        "autocast": settings.compute != "fp32" and not fsdp,
        "scaler": settings.compute == "fp16",
        "clip": taken.spec.train.grad_clip,
    }


def export(taken: ExportSource) -> Bundle:
    """The script, which `torchrun` starts; a plan of one rank is started without it."""
    plan = taken.plan
    command = f"python {SCRIPT}" if plan.world_size == 1 else start_command(taken)
    text = filled("torchrun.py.jinja", **torch_words(taken), command=command)
    return Bundle(
        format="torchrun",
        files={SCRIPT: text},
        command=command,
        environment=render_environment(plan, taken.device),
        unsaid=tuple(what_is_yours(taken)),
    )
