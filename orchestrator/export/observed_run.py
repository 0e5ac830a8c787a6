"""Run of an exported folder with a recorder in each process."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import workers.run_recorder
from orchestrator.export.scripts import start_environment
from search_spaces.errors import UserError
from search_spaces.safety.files import write_durably
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest
from search_spaces.settings.observed_run import (
    FAILURE,
    FOLDER_VARIABLE,
    OBSERVED,
    ObservedSettings,
    ObservedStep,
)

_SITE = Path(workers.run_recorder.__file__).parent / "site"
_STOP_SECONDS = 10.0  # between a signal and the next stronger one
LOG_NAME = "verify.log"  # output of a failed run, in the exported folder
# log lines of torchrun, which accelerate uses too; the line of a failed rank precedes the summary
# (torch/distributed/elastic/multiprocessing/api.py)
_TORCHRUN = re.compile(r"^[A-Z]\d{4} .*torch/distributed/")
_LAUNCHER_ERROR = "subprocess.CalledProcessError"  # accelerate's own error if its one rank fails
_AGENT = re.compile(
    r"^E\d{4} .*torch/distributed/elastic/.*failed \(exitcode: (-?\d+)\) local_rank: (\d+)"
)
# how formats that train on one machine start their files
_FILE = r"([A-Za-z]\w*\.(?:py|yaml))"
_COMMANDS = (
    re.compile(rf"python {_FILE}"),
    re.compile(rf"torchrun --nproc-per-node \d+ {_FILE}"),
    re.compile(rf"accelerate launch --config_file {_FILE} {_FILE}"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRank:
    """Settings and steps that the recorder of a rank observed."""

    settings: ObservedSettings
    steps: tuple[ObservedStep, ...]


def observed_run(
    manifest: ExportManifest, folder: Path, *, steps: int, seconds: float
) -> tuple[ObservedRank, ...]:
    """Runs a folder for some optimizer steps, and returns the observations of its ranks.

    The processes use this Python's environment, and have ended when this returns.

    Args:
        manifest: The manifest of the folder.
        folder: The exported folder.
        steps: Optimizer steps to run.
        seconds: Time limit.

    Returns:
        Observations in the order of ranks.

    Raises:
        UserError: If the command cannot start, fails, takes longer than `seconds`, or trains
            where no recorder runs.
    """
    if not manifest.local:
        raise UserError(
            f"{folder}: `{manifest.command}` does not train on this machine, and verify can only"
            " observe local processes; export the plan in another format to verify it"
        )
    command = [*start_words(manifest), "--steps", str(steps)]
    with tempfile.TemporaryDirectory(prefix="plimsoll-") as temporary:
        environment = environment_of(manifest, Path(temporary))
        with Path(temporary, "log").open("wb") as output:
            failure = run_in(folder, command, environment, seconds, output, output)
        if failure:
            log = _keep_log(Path(temporary, "log"), folder)
            cause = first_failure(Path(temporary)) or "no output"
            raise UserError(
                f"{folder}: `{manifest.command}` {failure}: {cause} (the whole output is in {log})"
            )
        with contextlib.suppress(OSError):
            (folder / LOG_NAME).unlink(missing_ok=True)  # of an earlier run that failed
        ranks = sorted(ranks_in(Path(temporary)), key=lambda rank: rank.settings.rank)
    if not ranks:
        raise UserError(
            f"{folder}: `{manifest.command}` succeeded, but no process took two optimizer steps:"
            " it must train on this machine, with Plimsoll installed"
        )
    return tuple(ranks)


def run_in(
    folder: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    stdout: IO[bytes],
    stderr: IO[bytes],
) -> str:
    """Runs a command in a folder, and ends all that it started.

    Returns:
        How it failed; an empty string if it did not.

    Raises:
        UserError: If the program cannot be started.
    """
    try:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    except OSError as error:
        raise UserError(f"{folder}: `{command[0]}` cannot start: {error.strerror}") from None
    try:
        code = process.wait(seconds)
        return f"failed with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"took longer than {seconds:.0f} s"
    finally:
        _stop(process)


def start_words(manifest: ExportManifest) -> list[str]:
    """Returns the words of a manifest's command, if it starts a file of the folder as exports do.

    The manifest may come from anybody, and `plimsoll verify` runs no more than the folder's script.

    Raises:
        UserError: If it is another command.
    """
    exported = {name for name, _ in manifest.files}
    words = manifest.command.split()
    for form in _COMMANDS:
        matched = form.fullmatch(manifest.command)
        if matched is not None and exported.issuperset(matched.groups()):
            return words
    raise UserError(
        f"the command `{manifest.command}` in {EXPORTED_FILE} is not run: plimsoll export starts"
        " files of the folder with python, torchrun or accelerate launch"
    )


def _keep_log(log: Path, folder: Path) -> Path:
    try:
        write_durably(folder / LOG_NAME, log.read_bytes())
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="plimsoll-verify-"))
        write_durably(folder / LOG_NAME, log.read_bytes())
    return folder / LOG_NAME


def first_failure(folder: Path) -> str:
    """Returns the first error of a run in one line; empty if there was no output.

    It is the earliest exception that a recorder saw. If there is none, it is the signal that ended
    a rank, or the last line before those of the launcher.

    Args:
        folder: Folder with the log and the files of the recorders.
    """
    files = folder.glob("*.failed")
    failures = [FAILURE.validate_json(file.read_bytes()) for file in files]
    if failures:
        first = min(failures, key=lambda failure: failure.at)
        where = f" ({first.where})" if first.where else ""
        return f"rank {first.rank} failed with {first.error}{where}"
    lines: list[str] = []
    for line in Path(folder, "log").read_text(encoding="utf-8", errors="replace").splitlines():
        if agent := _AGENT.match(line):
            code, rank = int(agent[1]), agent[2]
            if code < 0:
                name = signal.Signals(-code).name
                killer = ", as by the OOM killer" if name == "SIGKILL" else ""
                return f"rank {rank} was killed by {name}{killer}"
            break
        if not _TORCHRUN.match(line):
            lines.append(line.strip())
    if lines and lines[-1].startswith(_LAUNCHER_ERROR):
        lines = lines[: max(n for n, line in enumerate(lines) if line.startswith("Traceback"))]
    return next((line for line in reversed(lines) if line), "")


def environment_of(manifest: ExportManifest, folder: Path) -> dict[str, str]:
    """Returns the environment of a run: this process's and the plan's, with the recorder.

    Variables that the manifest names are for people: they may name any library to load.

    This Python's programs come first on `PATH`, and the recorder first on `PYTHONPATH`.

    Args:
        manifest: The manifest of the exported folder.
        folder: Temporary folder for the files of the recorders and of torchrun.
    """
    modules = [str(_SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **start_variables(manifest),
        "PET_LOG_DIR": str(folder),  # torchrun's --log-dir
        "PYTHONPATH": os.pathsep.join(modules),
        FOLDER_VARIABLE: str(folder),
    }


def start_variables(manifest: ExportManifest) -> dict[str, str]:
    """Returns this process's variables and the plan's, with this Python's programs first."""
    programs = [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
    return {
        **os.environ,
        **dict(start_environment(manifest.plan, manifest.device)),
        "PATH": os.pathsep.join(programs),
    }


def _stop(process: subprocess.Popen[bytes]) -> None:
    for signum in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


def ranks_in(folder: Path) -> Iterator[ObservedRank]:
    """Yields the observations in a folder, of ranks that took two steps."""
    for file in sorted(folder.glob("*.jsonl")):
        # a killed process may leave an incomplete line
        lines = [line for line in file.read_bytes().splitlines(keepends=True) if line[-1:] == b"\n"]
        observations = [OBSERVED.validate_json(line) for line in lines]
        settings = [item for item in observations if isinstance(item, ObservedSettings)]
        if settings:
            steps = tuple(item for item in observations if isinstance(item, ObservedStep))
            yield ObservedRank(settings=settings[0], steps=steps)
