"""The application: its commands, and the one place that turns a user's error into a message."""

import os
import stat
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from orchestrator.cli.check import check
from orchestrator.cli.console import print_error
from orchestrator.cli.doctor import doctor
from orchestrator.cli.exit_codes import exit_code_after, exit_codes_epilog, machine_sentence
from orchestrator.cli.explain import explain
from orchestrator.cli.export import export
from orchestrator.cli.init import init
from orchestrator.cli.mcp import mcp
from orchestrator.cli.models import models
from orchestrator.cli.plan import plan
from orchestrator.cli.report import report
from orchestrator.cli.result import as_command
from orchestrator.cli.retry import retry
from orchestrator.cli.schema import schema
from orchestrator.cli.submit import submit
from orchestrator.cli.sync import sync
from orchestrator.cli.trial import trial
from orchestrator.cli.tune import tune
from orchestrator.cli.ui import ui
from orchestrator.cli.verify import verify
from search_spaces.errors import DISTRIBUTION, MachineError, UserError

app = typer.Typer(
    name="plimsoll",
    help="Find the training configuration with the most samples per second that fits in memory,"
    " by measuring it.",
    no_args_is_help=True,
    epilog=exit_codes_epilog(),
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    init,
    check,
    plan,
    tune,
    submit,
    trial,
    report,
    explain,
    export,
    verify,
    retry,
    sync,
    ui,
    models,
    schema,
    mcp,
    doctor,
):
    app.command()(as_command(command))


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"plimsoll {version(DISTRIBUTION)}")
        raise typer.Exit


@app.callback()
def _options(
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
        ),
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line and exits with one of `ExitCode`.

    Args:
        arguments: Words after `plimsoll`; None takes those of the process.
    """
    run(app, arguments, name="plimsoll")


def run(app: typer.Typer, arguments: Sequence[str] | None, *, name: str) -> NoReturn:
    """Runs an application of commands and exits with one of `ExitCode`."""
    os.umask(os.umask(stat.S_IWOTH) | stat.S_IWOTH)  # other users cannot change what it writes
    try:
        try:
            Path.cwd()
        except FileNotFoundError:
            raise MachineError("the working folder is gone: change to another one") from None
        app(arguments, prog_name=name)
    except UserError as error:
        print_error(str(error))
        sys.exit(exit_code_after(error))
    except KeyboardInterrupt as interrupt:
        print_error("interrupted")
        sys.exit(exit_code_after(interrupt))
    except Exception as error:
        fault = f"{type(error).__name__}: {error}".strip(": ")
        print_error(
            machine_sentence(error)
            or f"Plimsoll failed ({fault}). This is a bug: please report it with the traceback that"
            " --debug shows"
        )
        sys.exit(exit_code_after(error))
    sys.exit()
