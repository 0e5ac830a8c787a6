"""Exit codes of all commands, with their meanings."""

from __future__ import annotations

import errno
import signal
from collections.abc import Mapping
from enum import IntEnum
from typing import TYPE_CHECKING

from orchestrator.core.failures import cause_of_all
from orchestrator.core.reasons import MachineReason
from search_spaces.errors import MachineError, StudyLost, TrackingLost, UserError
from search_spaces.safety.files import packaged_table

if TYPE_CHECKING:
    from orchestrator.core.state import SweepState


class ExitCode(IntEnum):
    """The exit code of a command."""

    DONE = 0
    NOTHING_FOUND = 1
    USER_ERROR = 2
    INTERNAL_ERROR = 70  # sysexits.h: EX_SOFTWARE
    TRY_AGAIN = 75  # sysexits.h: EX_TEMPFAIL
    NO_SUCH_COMMAND = 127  # as in shells
    INTERRUPTED = 130  # 128 + SIGINT
    NO_READER = 141  # 128 + SIGPIPE
    TERMINATED = 143  # 128 + SIGTERM


_TEXTS = packaged_table(__package__, "exit_codes.yaml")
MEANINGS: Mapping[ExitCode, str] = {
    ExitCode[name]: meaning for name, meaning in _TEXTS["meanings"].items()
}


def machine_sentence(error: BaseException) -> str | None:
    """Returns a sentence on an error of the machine's making, or None if it is another one."""
    if not isinstance(error, OSError):
        return None
    advice = _TEXTS["machine_errors"].get(errno.errorcode.get(error.errno or 0))
    if advice is None:
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


def sweep_exit_code(state: SweepState) -> ExitCode:
    """Returns the exit code of a sweep that ended."""
    reason = state.ended and state.ended.reason
    if isinstance(reason, MachineReason) or cause_of_all(state.records):
        return ExitCode.TRY_AGAIN
    return ExitCode.NOTHING_FOUND if state.best is None else ExitCode.DONE


def exit_codes_epilog() -> str:
    """Returns the table below `plimsoll --help`, one paragraph per line."""
    lines = [f"{int(code)}  {meaning}" for code, meaning in MEANINGS.items()]
    return "\n\n".join(["Exit codes:", *lines])
