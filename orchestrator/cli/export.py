"""`plimsoll export`: the answer as files that another trainer starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.console import OptionalSpecPath, say
from orchestrator.cli.latest import spec_and_name
from orchestrator.cli.stored import stored_state


def export(
    spec_path: OptionalSpecPath = None,
    format_name: Annotated[
        str, typer.Option("--format", metavar="NAME", help="deepspeed or torchrun.")
    ] = "torchrun",
    number: Annotated[
        int | None, typer.Option("--plan", metavar="N", help="Of trial N; else the answer.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder.")] = None,
) -> None:
    """Write a plan of a sweep down for another trainer, with the command that starts it."""
    spec, name = spec_and_name(spec_path)

    from orchestrator.export import chosen_record, fitting, taken, write_bundle
    from orchestrator.study import load_end, load_proofs, load_records
    from workers.preparation import prepare

    records, proofs = load_records(spec, name), load_proofs(spec, name)
    state = stored_state(spec, name, records, proofs, load_end(spec, name))
    record = chosen_record(state, number)
    form = fitting(format_name, record)
    what = taken(state, record, prepare(spec))
    bundle, folder = form.export(what), out or Path(f"{name}-{format_name}")
    write_bundle(bundle, what, folder)
    say(f"{folder}: trial {record.number} of {name}. Start it there: {bundle.command}")
