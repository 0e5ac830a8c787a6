"""The command of an exported folder, run with a witness in each of its processes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
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
from search_spaces.witnessed import (
    FAILURE,
    FOLDER_VARIABLE,
    SEEN,
    SeenFailure,
    SeenSettings,
    SeenStep,
)

_SITE = Path(workers.witness.__file__).parent / "site"
_PATIENCE_SECONDS = 10.0  # for processes that are told to end
LOG_NAME = "verify.log"  # in the exported folder, of a run that failed
# lines of torchrun, which accelerate starts too; that of a failed rank precedes its closing table
# (torch/distributed/elastic/multiprocessing/api.py)
_TORCHRUN = re.compile(r"^[A-Z]\d{4} .*torch/distributed/")
_LAUNCHER_ERROR = "subprocess.CalledProcessError"  # how accelerate ends where it starts one rank
_AGENT = re.compile(
    r"^E\d{4} .*torch/distributed/elastic/.*failed \(exitcode: (-?\d+)\) local_rank: (\d+)"
)


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
            log = _keep_log(Path(kept, "log"), folder)
            cause = first_failure(Path(kept)) or "it said nothing"
            raise UserError(
                f"{folder}: `{exported.command}` {ended}: {cause} (the whole output is in {log})"
            )
        with contextlib.suppress(OSError):
            (folder / LOG_NAME).unlink(missing_ok=True)  # of a run that failed before
        found = sorted(ranks_in(Path(kept)), key=lambda rank: rank.settings.rank)
    if not found:
        raise UserError(
            f"{folder}: `{exported.command}` ended well, but no process was seen to take two"
            " optimizer steps: it has to train on this machine, where Plimsoll is installed"
        )
    return tuple(found)


def _run(exported: Exported, folder: Path, steps: int, seconds: float, kept: Path) -> str:
    """Runs the command; returns how it failed, or nothing if it did not."""
    command = [*shlex.split(exported.command), "--steps", str(steps)]
    with Path(kept, "log").open("wb") as output:
        try:
            process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment_of(exported, kept),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{folder}: `{command[0]}` cannot run: {error.strerror}") from None
        try:
            code = process.wait(seconds)
            return f"ended with {code}" if code else ""
        except subprocess.TimeoutExpired:
            return f"took longer than {seconds:.0f} s"
        finally:
            _end(process)


def _keep_log(log: Path, folder: Path) -> Path:
    """Copies the output to where it stays: the exported folder, or a temporary one."""
    try:
        return Path(shutil.copy(log, folder / LOG_NAME))
    except OSError:
        elsewhere = tempfile.mkdtemp(prefix="plimsoll-verify-")
        return Path(shutil.copy(log, Path(elsewhere, LOG_NAME)))


def first_failure(kept: Path) -> str:
    """Names the first error of a run, in one line; empty if there was no output at all.

    It is the exception that a witness saw first. A rank that ends without one has printed its
    reason last, before the launcher's own lines, or was ended by a signal.
    """
    files = kept.glob("*.failed")
    failures = [FAILURE.validate_json(file.read_bytes()) for file in files]
    if failures:
        return _failure_words(min(failures, key=lambda failure: failure.at))
    lines: list[str] = []
    for line in Path(kept, "log").read_text(encoding="utf-8", errors="replace").splitlines():
        if agent := _AGENT.match(line):
            code, rank = int(agent[1]), agent[2]
            if code < 0:
                return f"rank {rank} was ended by {_signal_name(-code)}"
            break
        if not _TORCHRUN.match(line):
            lines.append(line.strip())
    if lines and lines[-1].startswith(_LAUNCHER_ERROR):
        lines = lines[: max(n for n, line in enumerate(lines) if line.startswith("Traceback"))]
    return next((line for line in reversed(lines) if line), "")


def _failure_words(failure: SeenFailure) -> str:
    where = f" ({failure.where})" if failure.where else ""
    return f"rank {failure.rank} failed with {failure.error}{where}"


def _signal_name(number: int) -> str:
    name = signal.Signals(number).name
    return f"{name}, as the kernel does out of memory" if name == "SIGKILL" else name


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
