"""`plimsoll export`: a plan as files that another trainer starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.completion import FORMAT_NAMES, complete_format
from orchestrator.cli.console import say
from orchestrator.cli.options import Json, StudyName, TrialNumber, find
from orchestrator.cli.result import Result


def export(
    study: StudyName = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"{', '.join(FORMAT_NAMES[:-1])} or {FORMAT_NAMES[-1]};"
            " else the first of them that can say the plan.",
            autocompletion=complete_format,
        ),
    ] = None,
    trial: TrialNumber = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="A new folder.")] = None,
    as_json: Json = False,
) -> Result:
    """Export a plan as a script or config for another trainer, with the command that starts it."""
    found = find(study)

    from orchestrator.export.bundle import write_bundle
    from orchestrator.export.formats import exported, fitting
    from orchestrator.export.source import chosen_record, export_source
    from orchestrator.study.reader import load_state
    from workers.prepare import prepare

    state = load_state(found.spec, found.name)
    record = chosen_record(state, trial)
    form = fitting(format_name, record)  # before the model is read, which may take long
    what = export_source(state, record, prepare(found.spec))
    bundle, folder = exported(what, form), out or Path(f"{found.name}-{form}")
    write_bundle(bundle, what, folder)
    if not as_json:
        said = f"{folder}: trial {record.number} of {found.name}."
        say(f"{said} Start it by: {bundle.command_from(folder)}")
    content = {
        "study": found.name,
        "trial": record.number,
        "format": form,
        "folder": str(folder),
        "files": sorted(file.name for file in folder.iterdir()),
        "command": bundle.command_from(folder),
        "environment": dict(bundle.environment),
        "left_to_you": list(bundle.unsaid),
    }
    return Result(kind="export", content=lambda: content)
