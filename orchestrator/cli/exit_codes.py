"""Exit codes of all commands, with their meanings."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from search_spaces.errors import StudyLost, UserError


class ExitCode(IntEnum):
    """The exit code of a command."""

    DONE = 0
    NOTHING_FOUND = 1
    USER_ERROR = 2
    INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
    STUDY_LOST = 75  # sysexits.h: EX_TEMPFAIL, try again later
    NO_SUCH_COMMAND = 127  # as in shells
    INTERRUPTED = 130  # 128 + SIGINT
    TERMINATED = 143  # 128 + SIGTERM


MEANINGS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.DONE: "done",
        ExitCode.NOTHING_FOUND: "ran, with a negative result: no feasible plan (tune, explain), no"
        " plan fits (plan), the folder differs from the measurement (verify), the job was stopped"
        " (submit), other decisions (replay)",
        ExitCode.USER_ERROR: "invalid input; one message on stderr says how to correct it",
        ExitCode.INTERNAL_ERROR: "a bug in Plimsoll; --debug shows the traceback",
        ExitCode.STUDY_LOST: "the study's database became unreachable; measured trials are safe,"
        " run the same command again",
        ExitCode.NO_SUCH_COMMAND: "submit: Plimsoll is not installed on the cluster",
        ExitCode.INTERRUPTED: "ended by Ctrl-C; the same command resumes",
        ExitCode.TERMINATED: "ended by SIGTERM (for example `ray job stop`); the same command"
        " resumes",
    }
)


def exit_code_after(error: BaseException) -> ExitCode:
    """Returns the exit code of a command that an error or a signal ended."""
    match error:
        case StudyLost():
            return ExitCode.STUDY_LOST
        case UserError():
            return ExitCode.USER_ERROR
        case KeyboardInterrupt():  # as shells have it
            return ExitCode(128 + getattr(error, "signum", signal.SIGINT))
        case _:
            return ExitCode.INTERNAL_ERROR


def sweep_exit_code(*, found: bool) -> ExitCode:
    """Returns the exit code of a sweep that ended; `found`: it has a best plan."""
    return ExitCode.DONE if found else ExitCode.NOTHING_FOUND


def exit_codes_epilog() -> str:
    """Returns the table below `plimsoll --help`, one paragraph per line."""
    lines = [f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n\n".join(["Exit codes:", *lines])


def exit_codes_markdown() -> str:
    """Returns the table in docs/cli.md."""
    rows = [f"| {int(code)} | {meaning} |" for code, meaning in MEANINGS.items()]
    return "\n".join(["| code | meaning |", "|---|---|", *rows]) + "\n"
