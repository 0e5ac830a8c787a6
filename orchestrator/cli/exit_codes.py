"""Exit codes: one meaning each, for all commands."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType


class ExitCode(IntEnum):
    """The end of a command, as a shell is told."""

    DONE = 0
    NOTHING_FOUND = 1
    USER_ERROR = 2
    INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
    STUDY_LOST = 75  # sysexits.h: EX_TEMPFAIL, try again later
    NO_SUCH_COMMAND = 127  # as shells have it
    INTERRUPTED = 130  # 128 + SIGINT
    TERMINATED = 143  # 128 + SIGTERM


MEANINGS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.DONE: "done",
        ExitCode.NOTHING_FOUND: "ran, and the answer is no: no plan was found (tune, explain), none"
        " fits (plan), the folder does not do what was measured (verify), the job was stopped"
        " (submit)",
        ExitCode.USER_ERROR: "the input cannot be used; one message on stderr says what would be"
        " right",
        ExitCode.INTERNAL_ERROR: "a fault of Plimsoll's own; --debug shows the traceback",
        ExitCode.STUDY_LOST: "the study's database stayed away; what was measured is kept, run the"
        " same command again",
        ExitCode.NO_SUCH_COMMAND: "submit: Plimsoll is not installed on the cluster",
        ExitCode.INTERRUPTED: "ended by Ctrl-C; the same command goes on",
        ExitCode.TERMINATED: "ended by SIGTERM, as by `ray job stop`; the same command goes on",
    }
)


def exit_codes_epilog() -> str:
    """The table as it stands below `plimsoll --help`, a paragraph for each line."""
    lines = [f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n\n".join(["Exit codes:", *lines])


def exit_codes_markdown() -> str:
    """The table as docs/cli.md has it."""
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"
