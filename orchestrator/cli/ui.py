"""`plimsoll ui`: MLflow for a study."""

import signal
import subprocess
from contextlib import suppress
from typing import Annotated

import psutil
import typer

from orchestrator.cli.console import print_line
from orchestrator.cli.options import StudyName, named_study
from search_spaces.errors import UserError


def ui(
    study: StudyName = None,
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Serve the MLflow UI for a sweep until Ctrl-C."""
    named = named_study(study)
    spec, name = named.spec, named.name
    from orchestrator.tracking.mlflow_view import sweep_pages, ui_command, ui_environment

    # MLflow's own first page lists no runs
    pages = sweep_pages(spec, name, port=port)
    print_line(f"All trials: {pages.trials}")
    if pages.sweep:
        print_line(f"Best plan: {pages.sweep}")

    command = ui_command(spec, pages, port=port)
    # inherited: Ctrl-C, which reaches the server too, would let each of its processes complain
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = subprocess.Popen(command, env=ui_environment(spec))
    except OSError as error:
        raise UserError(f"cannot start {command[0]}: {error.strerror}") from None
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, _end)
    raise typer.Exit(max(server.wait(), 0))


def _end(*_: object) -> None:
    """Asks the server to end, with the processes that it started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            process.terminate()
