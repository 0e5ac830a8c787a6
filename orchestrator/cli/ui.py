"""`plimsoll ui`: MLflow on the sweep's store."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from orchestrator.cli.console import OptionalSpecPath, say
from orchestrator.latest import spec_and_name
from search_spaces.errors import UserError


def ui(
    spec_path: OptionalSpecPath = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5000,
) -> None:
    """Open the MLflow UI on a sweep; Ctrl-C ends it."""
    spec, name = spec_and_name(spec_path)

    from orchestrator.mlflow_tracking import sweep_pages, ui_command, ui_environment

    # MLflow's own first page shows none of the runs
    pages = sweep_pages(spec, name, port=port)
    say(f"The trials: {pages.trials}")
    if pages.answer:
        say(f"The answer: {pages.answer}")

    command = ui_command(spec, pages, port=port)
    try:
        os.execvpe(command[0], command, ui_environment(spec))
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}") from None
