"""The command of an exported folder, run with a witness in each of its processes."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import workers.witness
from search_spaces.errors import UserError
from search_spaces.exported import Exported
from search_spaces.witnessed import FOLDER_VARIABLE, SEEN, SeenSettings, SeenStep

_SITE = Path(workers.witness.__file__).parent / "site"
_PATIENCE_SECONDS = 10.0  # for processes that are told to end
_TAIL_LINES = 15  # of what a run that failed has said


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenRank:
    """What the witness of a rank wrote down."""

    settings: SeenSettings
    steps: tuple[SeenStep, ...]


def witnessed(
    exported: Exported, folder: Path, *, steps: int, seconds: float
) -> tuple[SeenRank, ...]:
    """Runs a folder for some optimizer steps; what was seen of each rank, in their order.

    The processes are those of this Python's environment, and have ended when this returns.

    Raises:
        UserError: If the command cannot be started, fails, takes longer than `seconds`, or trains
            where nobody could look.
    """
    if not exported.local:
        raise UserError(
            f"{folder}: `{exported.command}` starts nothing on this machine alone, and only here"
            " can it be looked at; export the plan in another format to verify it"
        )
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as kept:
        ended = _run(exported, folder, steps, seconds, Path(kept))
        if ended:
            raise UserError(f"{folder}: `{exported.command}` {ended}")
        found = sorted(ranks_in(Path(kept)), key=lambda rank: rank.settings.rank)
    if not found:
        raise UserError(
            f"{folder}: `{exported.command}` ended well, but no process was seen to take two"
            " optimizer steps: it has to train on this machine, where Plimsoll is installed"
        )
    return tuple(found)


def _run(exported: Exported, folder: Path, steps: int, seconds: float, kept: Path) -> str:
    """How it failed, with what it said last; empty if it did not."""
    command = [*shlex.split(exported.command), "--steps", str(steps)]
    log = kept / "log"
    with log.open("wb") as said:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_of(exported, kept),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{folder}: `{command[0]}` cannot run: {error.strerror}") from None
        try:
            code = process.wait(seconds)
            return f"ended with {code}; {_last_words(log)}" if code else ""
        except subprocess.TimeoutExpired:
            # before it is ended, which it may have much to say of
            return f"took longer than {seconds:.0f} s; {_last_words(log)}"
        finally:
            _end(process)


def environment_of(exported: Exported, kept: Path) -> dict[str, str]:
    """Ours and the plan's, with this Python's programs first and the witness before its modules.

    What torchrun leaves goes with the folder `kept`.
    """
    modules = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        "PET_LOG_DIR": str(kept),  # torchrun's --log-dir
        **dict(exported.environment),
        "PATH": os.pathsep.join(programs),
        "PYTHONPATH": os.pathsep.join(modules),
        FOLDER_VARIABLE: str(kept),
    }


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of its session: asked to first, then made to."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)


def _last_words(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(["it said last:", *lines[-_TAIL_LINES:]]) if lines else "it said nothing"


def ranks_in(kept: Path) -> Iterator[SeenRank]:
    """What witnesses have written into a folder, of ranks that took two steps."""
    for file in sorted(kept.glob("*.jsonl")):
        # a process that was killed may have left half a line
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        seen = [SEEN.validate_json(line) for line in lines]
        settings = [each for each in seen if isinstance(each, SeenSettings)]
        if settings:
            steps = tuple(each for each in seen if isinstance(each, SeenStep))
            yield SeenRank(settings=settings[0], steps=steps)
