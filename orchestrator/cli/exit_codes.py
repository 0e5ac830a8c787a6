"""Exit codes of all commands, with their meanings."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType

from orchestrator.core.reasons import StopReason, ended_by_machine
from search_spaces.errors import MachineError, StudyLost, TrackingLost, UserError


class ExitCode(IntEnum):
    """The exit code of a command."""

    DONE = 0
    NOTHING_FOUND = 1
    USER_ERROR = 2
    INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
    TRY_AGAIN = 75  # sysexits.h: EX_TEMPFAIL
    NO_SUCH_COMMAND = 127  # as in shells
    INTERRUPTED = 130  # 128 + SIGINT
    TERMINATED = 143  # 128 + SIGTERM


MEANINGS: Mapping[ExitCode, str] = MappingProxyType(
    {
        ExitCode.DONE: "done",
        ExitCode.NOTHING_FOUND: "ran, with a negative result: no feasible plan (tune, explain), no"
        " plan fits (plan), the folder differs from the measurement, or losses were not compared"
        " (verify), the job was stopped (submit)",
        ExitCode.USER_ERROR: "invalid input; one message on stderr says how to correct it",
        ExitCode.INTERNAL_ERROR: "a bug in Plimsoll; --debug shows the traceback",
        ExitCode.TRY_AGAIN: "the study's database or MLflow does not answer, or machines or nodes"
        " failed; measured trials are safe, run the same command again",
        ExitCode.NO_SUCH_COMMAND: "submit: Plimsoll is not installed on the cluster",
        ExitCode.INTERRUPTED: "ended by Ctrl-C; the same command resumes",
        ExitCode.TERMINATED: "ended by SIGTERM (for example `ray job stop`); the same command"
        " resumes",
    }
)


# What a machine tells a program when it cannot go on there, and what to do about it
_MACHINE: Mapping[int, str] = MappingProxyType(
    {
        errno.ENOSPC: "make room there",
        errno.EDQUOT: "make room there, or raise the quota",
        errno.EMFILE: "let a process open more files (ulimit -n)",
        errno.ENFILE: "let the machine open more files (sysctl fs.file-max)",
        errno.ENOMEM: "free memory",
        errno.EAGAIN: "let a user start more processes (ulimit -u)",
        errno.EIO: "check the disk",
        errno.EROFS: "make it writable",
    }
)


def machine_sentence(error: BaseException) -> str | None:
    """Returns a sentence on an error of the machine's making, or None if it is another one."""
    if not isinstance(error, OSError) or (advice := _MACHINE.get(error.errno or 0)) is None:
        return None
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}: {advice}, then run the same command again"


def exit_code_after(error: BaseException) -> ExitCode:
    """Returns the exit code of a command that an error or a signal ended."""
    match error:
        case StudyLost() | TrackingLost() | MachineError():
            return ExitCode.TRY_AGAIN
        case OSError() if machine_sentence(error):
            return ExitCode.TRY_AGAIN
        case UserError():
            return ExitCode.USER_ERROR
        case KeyboardInterrupt():  # as shells have it
            return ExitCode(128 + getattr(error, "signum", signal.SIGINT))
        case _:
            return ExitCode.INTERNAL_ERROR


def sweep_exit_code(reason: StopReason, *, found: bool) -> ExitCode:
    """Returns the exit code of a sweep that ended; `found`: it has a best plan."""
    if ended_by_machine(reason):
        return ExitCode.TRY_AGAIN
    return ExitCode.DONE if found else ExitCode.NOTHING_FOUND


def exit_codes_epilog() -> str:
    """Returns the table below `plimsoll --help`, one paragraph per line."""
    lines = [f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n\n".join(["Exit codes:", *lines])
