"""Output of the command line: results to stdout, errors to stderr."""

import os
import shlex
import shutil
import sys
from pathlib import Path

from rich.text import Text

from orchestrator.report.terminal import SafeConsole
from search_spaces.errors import written
from search_spaces.safety.files import write_durably
from search_spaces.safety.redaction import secret_values, without_secrets
from search_spaces.specification.schema import SweepSpec

LOG_COLUMNS = 110


def command_line(*arguments: str | Path) -> str:
    """Returns a `plimsoll` command to copy, with the program's path if the shell cannot find it."""
    program = "plimsoll" if shutil.which("plimsoll") else sys.argv[0]
    return shlex.join([program, *map(str, arguments)])


def ui_hint(spec: SweepSpec, study: str | Path | None) -> str:
    """Returns the command that opens MLflow on a study as the user named it; empty if untracked."""
    if not spec.tracking.enabled:
        return ""
    return command_line("ui") if study is None else command_line("ui", study)


def stdout() -> SafeConsole:
    """Returns a new console for results; tests and shells swap the stream between calls."""
    return SafeConsole(highlight=False, soft_wrap=True)


def table_console() -> SafeConsole:
    """Returns a console for tables, which wrap; a log, which has no width, gets 110 columns."""
    console = SafeConsole(highlight=False)
    return console if console.is_terminal else SafeConsole(highlight=False, width=LOG_COLUMNS)


def print_line(text: str, *, style: str = "") -> None:
    """Prints a line to stdout, without markup, so that brackets in names survive."""
    stdout().print(Text(text, style=style))


def print_error(message: str) -> None:
    """Prints a message to stderr, in red on a terminal, without secrets of libraries' errors."""
    console = SafeConsole(stderr=True, highlight=False, soft_wrap=True)
    said = without_secrets(message, values=secret_values(os.environ))
    console.print(Text(said, style="red"))


def write_text(file: Path, text: str, *, below: Path | None = None) -> None:
    """Writes a file, and creates its folder; none under `below` may be a link.

    Raises:
        UserError: If the file cannot be written.
    """
    with written(file):
        write_durably(file, text, below=below)
