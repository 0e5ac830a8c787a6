"""Export for torchrun: a script of plain torch with DDP, FSDP2 or one rank."""

from orchestrator.export import scripts
from orchestrator.export.bundle import Bundle
from orchestrator.export.source import ExportSource
from search_spaces.settings.render import render_environment, render_torch


def torch_words(source: ExportSource) -> dict[str, object]:
    """Returns the values that the templates of plain torch need."""
    settings = render_torch(source.plan, source.model)
    wrapping = settings.fsdp2 or settings.ddp
    return scripts.template_values(source, settings) | {
        "fsdp": settings.fsdp2 is not None,
        "ddp": settings.ddp is not None,
        "wrapping": None if wrapping is None else scripts.literal(wrapping),
        "group": "dist.group.WORLD" if source.plan.data > 1 else "None",
        "scaler": settings.compute == "fp16",
        "clip": source.spec.train.grad_clip,
    }


def export(source: ExportSource) -> Bundle:
    """Returns the script; `torchrun` starts it if it has several ranks."""
    plan = source.plan
    command = f"python {scripts.SCRIPT}" if plan.world_size == 1 else scripts.start_command(source)
    text = scripts.render_script("torchrun.py.jinja", **torch_words(source), command=command)
    return Bundle(
        format="torchrun",
        files={scripts.SCRIPT: text},
        command=command,
        environment=render_environment(plan, source.device),
    )
