"""Where the command line writes: results to stdout, what went wrong to stderr."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from search_spaces.errors import UserError
from search_spaces.spec.schema import SweepSpec

LOG_COLUMNS = 110


def command_line(*arguments: str | Path) -> str:
    """A command of Plimsoll's to be copied: with its path where the shell would not find it."""
    program = "plimsoll" if shutil.which("plimsoll") else sys.argv[0]
    return shlex.join([program, *map(str, arguments)])


def ui_hint(spec: SweepSpec, study: str | Path | None) -> str:
    """The command that opens MLflow on a study as it was named, empty if it is not tracked."""
    if not spec.tracking.enabled:
        return ""
    return command_line("ui") if study is None else command_line("ui", study)


def stdout() -> Console:
    """The console for results; made anew each time, since tests and shells swap the stream."""
    return Console(highlight=False, soft_wrap=True)


def page() -> Console:
    """The console for tables, which wrap; a log has no width of its own and gets a fair one."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=LOG_COLUMNS)


def say(text: str, *, style: str = "") -> None:
    """Writes a line to stdout; no markup, so that brackets in names stay as they are."""
    stdout().print(Text(text, style=style))


def say_error(message: str) -> None:
    """Writes a message to stderr, in red where that is a terminal."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(message, style="red"))


def write_text(file: Path, text: str) -> None:
    """Writes a file that the user named; its folder is made.

    Raises:
        UserError: If it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{file} cannot be written: {reason}") from None
