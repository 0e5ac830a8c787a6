"""`plimsoll export`: a plan as files for another trainer."""

from pathlib import Path
from typing import Annotated, get_args

import typer

from orchestrator.cli.console import print_line
from orchestrator.cli.options import Json, StudyName, TrialNumber, named_study
from orchestrator.cli.result import Result
from search_spaces.specification.schema import TrainerName

_FORMATS = get_args(TrainerName)[1:]


def export(
    study: StudyName = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"Format: {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]}"
            " (default: the specification's trainer, or the first that can express the plan).",
        ),
    ] = None,
    trial: TrialNumber = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR")] = None,
    as_json: Json = False,
) -> Result:
    """Export a plan as a script or config for another trainer, with its start command."""
    named = named_study(study)

    from orchestrator.export.formats import export_study

    record, bundle, folder = export_study(named, format_name=format_name, trial=trial, folder=out)
    if not as_json:
        print_line(
            f"{folder}: trial {record.number} of {named.name}."
            f" Start it with: {bundle.command_from(folder)}"
        )
    content = {
        "study": named.name,
        "trial": record.number,
        "format": bundle.format,
        "folder": str(folder),
        "files": sorted(file.name for file in folder.iterdir()),
        "command": bundle.command_from(folder),
        "environment": dict(bundle.environment),
        "left_to_you": list(bundle.caveats),
    }
    return Result(kind="export", content=lambda: content)
