"""A cluster's job server: sweeps are submitted to it, looked up and followed.

It takes HTTP alone: nothing of the cluster has to match this machine's Python or Ray. This is the
one module that knows Ray's job API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from orchestrator.cluster.runtime import settle_ray, settle_token
from search_spaces.errors import ClusterError, require

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

Status = Literal["pending", "running", "stopped", "succeeded", "failed"]
STUDY = "plimsoll_study"  # in a job's metadata
# What a sweep needs nothing of, as .gitignore writes it: results, checkpoints and what tools leave
EXCLUDED = (
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    ".*_cache",
    "node_modules",
    "plimsoll-runs",
    "mlruns",
    "mlflow.db",
    "checkpoints",
    "wandb",
    "*.ckpt",
    "*.pt",
    "*.pth",
    "*.safetensors",
)
# Time for a sweep to close its trial and its MLflow runs when the job is stopped; Ray gives 3 s
STOP_SECONDS = 30
_SIGNALLED = 128  # an exit code above it, or one below 0: a signal ended the process
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # where Ray's own commands look
_CHATTY = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)
_AGAIN_SECONDS = 2.0
_LARGEST = 3  # files that are named where a working directory is too large
_NO_JOB = "status code 404"
_TOO_LARGE = ("status code 413", "exceeds the maximum size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the server tells it; times are seconds since the epoch."""

    id: str
    status: Status
    message: str = ""
    exit_code: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    started_at: float = 0.0

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.status in ("stopped", "succeeded", "failed")

    @property
    def study(self) -> str | None:
        """The study whose sweep it runs, None if it is none of ours."""
        return dict(self.metadata).get(STUDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What to ask a job server for."""

    study: str
    entrypoint: str
    working_dir: str
    excludes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    requirements: str | None
    metadata: tuple[tuple[str, str], ...]

    @property
    def runtime_env(self) -> dict[str, object]:
        """As Ray takes it."""
        env: dict[str, object] = {
            "working_dir": self.working_dir,
            "excludes": list(self.excludes),
            "env_vars": dict(self.environment),
        }
        return env | ({"pip": self.requirements} if self.requirements else {})


def entrypoint(spec_path: str, options: Mapping[str, object]) -> str:
    """The command that runs a sweep in a job; its output is lines, for a log.

    Args:
        spec_path: Of the specification, from the job's working directory.
        options: Of `plimsoll tune`, by name; those that are None are left out, a switch has its
            name alone, and a tuple stands for an option that is repeated.
    """
    told = [
        word
        for name, value in options.items()
        if value is not None
        for each in (value if isinstance(value, tuple) else (value,))
        for word in ([f"--{name}"] if each is True else [f"--{name}", str(each)])
    ]
    return shlex.join(["plimsoll", "tune", spec_path, "--plain", *told])


def job_id(study: str, jobs: Iterable[Job]) -> str:
    """The name of the study's next job: its own, and from the second on a number."""
    taken = {job.id for job in jobs}
    first = f"plimsoll-{study}"
    number = 1
    while (name := first if number == 1 else f"{first}-{number}") in taken:
        number += 1
    return name


def under_way(study: str, jobs: Iterable[Job]) -> Job | None:
    """The job that runs the study now, or will; None if there is none."""
    ours = [job for job in jobs if job.study == study and not job.ended]
    return max(ours, key=lambda job: job.started_at, default=None)


def died(job: Job) -> bool:
    """Whether the job ended without its sweep's doing: the next one goes on where it was.

    A sweep that ends by itself says so by its exit code, which the next one would repeat.
    """
    if job.status != "failed":
        return False
    return job.exit_code is None or job.exit_code < 0 or job.exit_code > _SIGNALLED


def exit_code(job: Job) -> int:
    """What a shell should be told of a job that has ended."""
    if job.status == "succeeded":
        return 0
    return job.exit_code if job.exit_code is not None and job.exit_code > 0 else 1


def mute_progress() -> None:
    """Mutes what Ray's job client logs of each upload and connection; warnings remain.

    Call it when the client is imported: its modules set their own loggers to INFO.
    """
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)


class JobServer:
    """The job server of one cluster."""

    def __init__(self, address: str | None, patience_seconds: float = 300.0) -> None:
        """Connects.

        Args:
            address: As `http://head:8265`; None: what RAY_API_SERVER_ADDRESS or RAY_ADDRESS says.
            patience_seconds: How long a server that has answered may be away.

        Raises:
            ClusterError: If nothing is named, nothing answers, or the token is not the server's.
        """
        named = address or next((os.environ[name] for name in _ADDRESSES if name in os.environ), "")
        if "://" not in named:
            where = f"is {named}" if named else "is not given, nor RAY_API_SERVER_ADDRESS set"
            raise ClusterError(f"--address {where}: name the job server, as http://HEAD:8265")
        settle_ray()
        settle_token()
        os.environ[_ADDRESSES[0]] = named  # which Ray prefers to what it is told
        self.address = named
        self._patience_seconds = patience_seconds
        self._client = self._connected()

    def jobs(self) -> tuple[Job, ...]:
        """All that the server knows, oldest first."""
        jobs = (_job(told) for told in self._asked(self._client.list_jobs))
        return tuple(sorted(jobs, key=lambda job: job.started_at))

    def submit(self, submission: Submission, job_id: str) -> None:
        """Uploads the working directory and starts the job.

        Raises:
            ClusterError: If the server refuses it; of a directory that is too large with the
                files that make it so.
        """
        try:
            self._client.submit_job(
                entrypoint=submission.entrypoint,
                submission_id=job_id,
                runtime_env=submission.runtime_env,
                metadata=dict(submission.metadata),
            )
        except (RuntimeError, ValueError, OSError) as error:
            if any(words in str(error) for words in _TOO_LARGE):
                raise ClusterError(_too_large(Path(submission.working_dir))) from error
            self._refused(error)

    def job(self, job_id: str) -> Job | None:
        """How the job is; None if the server knows it no more, as after a restart of the head.

        Raises:
            ClusterError: If the server stays away for longer than one waits for it.
        """
        until = time.monotonic() + self._patience_seconds
        while True:
            try:
                return _job(self._client.get_job_info(job_id))
            except (RuntimeError, OSError) as error:
                if _NO_JOB in str(error):
                    return None
                if time.monotonic() > until:
                    waited = f"for {self._patience_seconds:.0f} s"
                    raise ClusterError(
                        f"{self.address} has not answered {waited}: what job {job_id} has measured"
                        " is kept in its study; submit it again to go on"
                    ) from error
            time.sleep(_AGAIN_SECONDS)

    def follow(self, job_id: str, write: Callable[[str], None]) -> Job | None:
        """Passes the job's log on until it has ended; then how; None if it is not known.

        Args:
            job_id: The job.
            write: Takes what is new of the log, which may end anywhere in a line.

        Raises:
            ClusterError: As `job` does.
        """
        log = _Log(write)
        while True:
            # the connection may break, and the job may not have begun: its state tells
            with contextlib.suppress(RuntimeError, OSError):
                asyncio.run(self._tail(job_id, log))
            job = self.job(job_id)
            if job is None or job.ended:
                with contextlib.suppress(RuntimeError, OSError):
                    log.take_whole(self._client.get_job_logs(job_id))
                return job
            time.sleep(_AGAIN_SECONDS)

    async def _tail(self, job_id: str, log: _Log) -> None:
        log.begin()
        async for text in self._client.tail_job_logs(job_id):
            log.take(text)

    def _connected(self) -> JobSubmissionClient:
        require("ray")
        from ray.job_submission import JobSubmissionClient

        mute_progress()
        return self._asked(lambda: JobSubmissionClient(self.address))

    def _asked(self, ask: Callable[[], Any]) -> Any:
        from ray.exceptions import AuthenticationError

        try:
            return ask()
        except AuthenticationError as error:
            raise ClusterError(
                f"{self.address} asks for another token: set RAY_AUTH_TOKEN to the cluster's"
                " (KubeRay keeps it in the Secret named as the cluster)"
            ) from error
        except (RuntimeError, ValueError, OSError) as error:
            self._refused(error)

    def _refused(self, error: Exception) -> NoReturn:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ClusterError(f"{self.address} does not take jobs ({reason})") from error


class _Log:
    """What was read of a log that begins anew with each connection."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = 0
        self._read = 0

    def begin(self) -> None:
        """What comes next is the log's beginning."""
        self._read = 0

    def take(self, text: str) -> None:
        """What comes next in the log."""
        fresh = text[max(self._written - self._read, 0) :]
        self._read += len(text)
        if fresh:
            self._write(fresh)
            self._written = self._read

    def take_whole(self, text: str) -> None:
        """The log from its beginning."""
        self.begin()
        self.take(text)


def _job(told: Any) -> Job:
    status: Status = told.status.value.lower()
    return Job(
        id=told.submission_id or told.job_id or "",
        status=status,
        message=" ".join((told.message or "").split()),
        exit_code=told.driver_exit_code,
        metadata=tuple(sorted((told.metadata or {}).items())),
        started_at=(told.start_time or 0) / 1000,
    )


def _too_large(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    largest = sorted(files, key=lambda path: -path.stat().st_size)[:_LARGEST]
    named = ", ".join(
        f"{path.relative_to(folder)} ({path.stat().st_size / 2**20:.0f} MiB)" for path in largest
    )
    return (
        f"--working-dir {folder} is larger than the 100 MiB that Ray's job server takes: leave out"
        f" what the sweep does not need with --exclude; the largest files are {named}"
    )
