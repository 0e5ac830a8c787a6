"""`plimsoll ui`: MLflow, or optuna-dashboard, on a study."""

from __future__ import annotations

import contextlib
import os
from typing import Annotated

import typer

from orchestrator.cli.console import say
from orchestrator.cli.options import StudyName, find
from search_spaces.errors import UserError


def ui(
    study: StudyName = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 5000,
    optuna: Annotated[
        bool, typer.Option("--optuna", help="Open optuna-dashboard instead, if it is installed.")
    ] = False,
) -> None:
    """Open the MLflow UI, or optuna-dashboard, on a sweep; Ctrl-C ends it."""
    found = find(study)
    spec, name = found.spec, found.name
    if optuna:
        from orchestrator.study.dashboard import serve_dashboard

        with contextlib.suppress(KeyboardInterrupt):  # the way to end it
            serve_dashboard(
                spec, name, port=port, ready=lambda url: say(f"optuna-dashboard: {url}")
            )
        return

    from orchestrator.tracking.mlflow_view import sweep_pages, ui_command, ui_environment

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
