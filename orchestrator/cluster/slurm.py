"""Client of Slurm through its commands: submits a script, finds its job and follows the log.

All functions raise `ClusterError` if Slurm is not on this machine, or does not answer.
"""

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from search_spaces.errors import ClusterError

_POLL = 2.0  # seconds
_LIMIT = 120.0  # seconds, for an answer
_MACHINES = frozenset({"BOOT_FAIL", "DEADLINE", "NODE_FAIL", "PREEMPTED", "TIMEOUT"})
# States that end a job; in all others it may run, or run again
_ENDED = _MACHINES | {"CANCELLED", "COMPLETED", "FAILED", "OUT_OF_MEMORY", "REVOKED", "forgotten"}


def submit_script(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    """Queues a script that runs in a folder, and returns the job's number."""
    words = ["sbatch", "--parsable", f"--chdir={folder}"]
    return _answer(words, script, environment).strip().partition(";")[0]


def queued_job(name: str, folder: Path) -> str | None:
    """Returns the latest job of that name and folder that has not ended, or None."""
    words = ["squeue", "--noheader", "--me", f"--name={name}", "--format=%A %Z"]
    jobs = [line.split(maxsplit=1) for line in _answer(words).splitlines()]
    return max((job for job, where in jobs if where == str(folder)), key=int, default=None)


def follow_job(job: str, log: Path, write: Callable[[str], None]) -> tuple[str, int]:
    """Writes each new piece of a job's log, and why it waits, until it has ended.

    Returns:
        The state in which it ended, in Slurm's word, and its exit code.
    """
    offset, waits = 0, ""
    while True:
        state, code, reason = _state_of(job)
        if state == "PENDING" and reason not in (waits, "None"):
            write(f"Job {job} waits in Slurm's queue ({reason}).\n")
            waits = reason
        if log.exists():
            with log.open("rb") as file:
                file.seek(offset)
                new = file.read()
            offset += len(new)
            write(new.decode(errors="replace"))
        if state in _ENDED:
            return state, code
        time.sleep(_POLL)


def _state_of(job: str) -> tuple[str, int, str]:
    """Returns a job's state, exit code and reason to wait."""
    try:
        shown = _answer(["scontrol", "--oneliner", "show", "job", job])
    except ClusterError as error:
        if "Invalid job id" in str(error):  # a few minutes after its end
            return "forgotten", 1, ""
        raise
    fields = dict(word.partition("=")[::2] for word in shown.split())
    state, (code, signal) = fields["JobState"], map(int, fields["ExitCode"].split(":"))
    if state in _MACHINES:
        code = os.EX_TEMPFAIL
    elif state != "COMPLETED":
        code = 128 + signal if signal else code or 1
    return state, code, fields["Reason"]


def _answer(
    words: list[str], text: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    env = os.environ | dict(environment or {})
    try:
        done = subprocess.run(
            words, input=text, env=env, capture_output=True, text=True, timeout=_LIMIT, check=False
        )
    except FileNotFoundError as error:
        raise ClusterError(
            f"there is no {words[0]} in the path: run this on a login node of Slurm, or use"
            " --dry-run and take the script there"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"{words[0]} has not answered for {_LIMIT:.0f} s") from error
    if done.returncode:
        raise ClusterError(f"Slurm refuses {words[0]} ({' '.join(done.stderr.split())})")
    return done.stdout
