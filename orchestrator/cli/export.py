"""`plimsoll export`: the answer as files that another trainer starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import OptionalSpecPath, say
from orchestrator.latest import spec_and_name
from orchestrator.stored import load_state


def export(
    spec_path: OptionalSpecPath = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="torchrun, deepspeed, accelerate, hf-trainer, ray-train, rayjob or torchtitan;"
            " else the first of them that can say the plan.",
        ),
    ] = None,
    number: Annotated[
        int | None, typer.Option("--plan", metavar="N", help="Of trial N; else the answer.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder.")] = None,
) -> None:
    """Write a plan of a sweep down for another trainer, with the command that starts it."""
    spec, name = spec_and_name(spec_path)

    from orchestrator.export import chosen_record, exported, fitting, taken, write_bundle
    from workers.preparation import prepare

    state = load_state(spec, name)
    record = chosen_record(state, number)
    form = fitting(format_name, record)  # before the model is read, which may take long
    what = taken(state, record, prepare(spec))
    bundle, folder = exported(what, form), out or Path(f"{name}-{form}")
    write_bundle(bundle, what, folder)
    say(f"{folder}: trial {record.number} of {name}. Start it by: {bundle.command_from(folder)}")
