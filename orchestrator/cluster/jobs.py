"""Client of a cluster's job server: submits sweeps, finds their jobs and follows the logs.

The server speaks HTTP, so this machine's Python and Ray need not match the cluster's. No other
module uses Ray's job API.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from orchestrator.cluster.ray_private import PACKAGING_LOGGER, packed_sizes
from orchestrator.cluster.runtime import configure_ray, enable_token_auth
from search_spaces.errors import ClusterError, require

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

Status = Literal["pending", "running", "stopped", "succeeded", "failed"]
STUDY = "plimsoll_study"  # in a job's metadata
# Files that no sweep needs, in .gitignore's syntax
DEFAULT_EXCLUDES = tuple(
    (files(__package__) / "not_uploaded.gitignore").read_text("utf-8").splitlines()
)
# Time for a stopped sweep to close its trial and its MLflow runs; Ray's default is 3 s
STOP_SECONDS = 30
_SIGNALLED = 128  # a signal ended the process if its exit code is above this, or negative
_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # as for Ray's own commands
_VERBOSE_LOGGERS = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    PACKAGING_LOGGER,
)
_POLL_SECONDS = 2.0
_REQUEST_SECONDS = 60.0  # for an answer
_UPLOAD_SECONDS = 1800.0  # for 100 MiB, the most that Ray's server takes, over a slow line
_SILENT_SECONDS = 60.0  # of a log, after which the job's state is asked for: its server may be gone
_MOST_BYTES = 100 * 2**20  # ray._private.ray_constants.DASHBOARD_CLIENT_MAX_SIZE, of the server
_LARGEST = 5  # folders and files named if a working directory is too large
_NO_JOB = "status code 404"
_NO_AGENT = "No available agent"  # shortly after a head has started


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """State of a job on the server; times are seconds since the epoch."""

    id: str
    status: Status
    message: str = ""
    exit_code: int | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    started_at: float = 0.0

    @property
    def ended(self) -> bool:
        """True once the job has stopped, failed or succeeded."""
        return self.status in ("stopped", "succeeded", "failed")

    @property
    def study(self) -> str | None:
        """The study whose sweep the job runs; None if `plimsoll submit` did not start it."""
        return dict(self.metadata).get(STUDY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Request for a new job."""

    study: str
    entrypoint: str
    working_dir: str
    excludes: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    requirements: str | None
    metadata: tuple[tuple[str, str], ...]

    @property
    def runtime_env(self) -> dict[str, object]:
        """The job's runtime environment in Ray's format."""
        env: dict[str, object] = {
            "working_dir": self.working_dir,
            "excludes": list(self.excludes),
            "env_vars": dict(self.environment),
        }
        return env | ({"pip": self.requirements} if self.requirements else {})


def entrypoint(spec_path: str, options: Mapping[str, object]) -> str:
    """Returns the command that runs a sweep in a job. It prints plain lines, for a log.

    Args:
        spec_path: The specification, relative to the job's working directory.
        options: Options of `plimsoll tune`, by name. None leaves an option out, True adds a switch,
            and a tuple repeats the option.
    """
    arguments = [
        word
        for name, value in options.items()
        if value is not None
        for each in (value if isinstance(value, tuple) else (value,))
        for word in ([f"--{name}"] if each is True else [f"--{name}", str(each)])
    ]
    return shlex.join(["plimsoll", "tune", spec_path, "--plain", *arguments])


def job_id(study: str, jobs: Iterable[Job]) -> str:
    """Returns the id of the study's next job: its name, plus a number from the second job on."""
    existing = {job.id for job in jobs}
    first = f"plimsoll-{study}"
    names = chain((first,), (f"{first}-{number}" for number in count(2)))
    return next(name for name in names if name not in existing)


def active_job(study: str, jobs: Iterable[Job]) -> Job | None:
    """Returns the study's latest job that has not ended, or None."""
    active = [job for job in jobs if job.study == study and not job.ended]
    return max(active, key=lambda job: job.started_at, default=None)


def can_resume(job: Job) -> bool:
    """Returns True if something outside the sweep ended the job, so that another one can resume.

    A sweep that ends by itself sets the exit code; another job would end in the same way, unless
    machines ended it. Ray's own handler of SIGTERM exits with the signal's number.
    """
    if job.status != "failed":
        return False
    code = job.exit_code
    return code is None or code < 0 or code > _SIGNALLED or code in (os.EX_TEMPFAIL, signal.SIGTERM)


def exit_code(job: Job) -> int:
    """Returns the exit code for a shell, from a job that has ended."""
    if job.status == "succeeded":
        return 0
    return job.exit_code if job.exit_code is not None and job.exit_code > 0 else 1


class JobServer:
    """Client of the job server of one cluster."""

    def __init__(self, address: str | None, patience_seconds: float = 300.0) -> None:
        """Connects to the server.

        Args:
            address: Such as `http://head:8265`; None: RAY_API_SERVER_ADDRESS or RAY_ADDRESS.
            patience_seconds: How long `job` and `follow` retry if the server stops answering.

        Raises:
            ClusterError: If there is no URL, no answer, or the server does not accept the token.
        """
        url = address or next((os.environ[name] for name in _ADDRESSES if name in os.environ), "")
        if "://" not in url:
            fault = f"is {url}" if url else "is not given, and RAY_API_SERVER_ADDRESS is not set"
            raise ClusterError(
                f"--address {fault}: give the job server's URL, such as http://HEAD:8265"
            )
        configure_ray()
        enable_token_auth()
        os.environ[_ADDRESSES[0]] = url  # Ray prefers the variable to the argument
        self.address = url
        self._patience_seconds = patience_seconds
        self._request_seconds = min(_REQUEST_SECONDS, patience_seconds)
        self._client = self._connect()

    def jobs(self) -> tuple[Job, ...]:
        """Returns all jobs that the server knows, oldest first."""
        jobs = map(_job, self._call(self._client.list_jobs))
        return tuple(sorted(jobs, key=lambda job: job.started_at))

    def submit(self, submission: Submission, job_id: str) -> None:
        """Uploads the working directory and starts the job.

        A connection that breaks, as while a head restarts, is waited for; a job whose answer was
        lost is not started again.

        Raises:
            ClusterError: If the server refuses the job, or does not answer within
                `patience_seconds`. If the directory is too large, which is known before it is
                packed, the message names its heaviest folders and largest files.
        """
        from requests import ConnectionError as LostConnection  # of Ray's client
        from requests import Timeout

        _check_size(Path(submission.working_dir), submission.excludes)
        until = time.monotonic() + self._patience_seconds
        while True:
            try:
                self._client.submit_job(
                    entrypoint=submission.entrypoint,
                    submission_id=job_id,
                    runtime_env=submission.runtime_env,
                    metadata=dict(submission.metadata),
                )
            except (RuntimeError, ValueError, OSError) as error:
                is_lost = isinstance(error, ConnectionError | LostConnection | Timeout)
                waits = is_lost or _NO_AGENT in str(error)
                if not waits or time.monotonic() > until:
                    self._raise_refused(error)
                time.sleep(_POLL_SECONDS)
                if is_lost and self.job(job_id) is not None:
                    return
            else:
                return

    def job(self, job_id: str) -> Job | None:
        """Returns the job's state; None if the server forgot it, as after a restart of the head.

        Raises:
            ClusterError: If the server does not answer within `patience_seconds`.
        """
        until = time.monotonic() + self._patience_seconds
        while True:
            try:
                return _job(self._client.get_job_info(job_id))
            except (RuntimeError, OSError) as error:
                if _NO_JOB in str(error):
                    return None
                if time.monotonic() > until:
                    raise ClusterError(
                        f"{self.address} has not answered for {self._patience_seconds:.0f} s: the"
                        f" results of job {job_id} are in its study; submit it again to resume"
                    ) from error
            time.sleep(_POLL_SECONDS)

    def follow(self, job_id: str, write: Callable[[str], None]) -> Job | None:
        """Writes the job's log until the job has ended.

        Args:
            job_id: The job.
            write: Receives each new piece of the log, which may end anywhere in a line.

        Returns:
            The job's last state, as `job` does.

        Raises:
            ClusterError: As `job` does.
        """
        log = _Log(write)
        while True:
            # the connection may break, or the job may not have begun: then its state decides
            with contextlib.suppress(RuntimeError, OSError):
                asyncio.run(self._tail(job_id, log))
            job = self.job(job_id)
            if job is None or job.ended:
                with contextlib.suppress(RuntimeError, OSError):
                    log.take(self._client.get_job_logs(job_id))
                return job
            time.sleep(_POLL_SECONDS)

    async def _tail(self, job_id: str, log: _Log) -> None:
        end = 0
        pieces = self._client.tail_job_logs(job_id)
        while True:
            try:
                async with asyncio.timeout(_SILENT_SECONDS):
                    text = await anext(pieces)
            except StopAsyncIteration:
                return
            end = log.take(text, end)

    def _connect(self) -> JobSubmissionClient:
        require("ray")
        return self._call(lambda: _bounded_client(self.address, self._request_seconds))

    def _call(self, request: Callable[[], Any]) -> Any:
        from ray.exceptions import AuthenticationError

        try:
            return request()
        except AuthenticationError as error:
            raise ClusterError(
                f"{self.address} does not accept the token: set RAY_AUTH_TOKEN to the cluster's"
                " token (KubeRay keeps it in a Secret with the cluster's name)"
            ) from error
        except (RuntimeError, ValueError, OSError) as error:
            self._raise_refused(error)

    def _raise_refused(self, error: Exception) -> NoReturn:
        from requests import Timeout

        if isinstance(error, Timeout):
            raise ClusterError(
                f"{self.address} has not answered for {self._request_seconds:.0f} s: check the"
                " address, and the log of the cluster's head"
            ) from error
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ClusterError(f"{self.address} does not accept jobs ({reason})") from error


def _bounded_client(address: str, request_seconds: float) -> JobSubmissionClient:
    """Returns Ray's client, whose requests are given up after a time, with no word but warnings."""
    from ray.job_submission import JobSubmissionClient

    for name in _VERBOSE_LOGGERS:  # which its modules set to INFO as they are imported
        logging.getLogger(name).setLevel(logging.WARNING)

    class Bounded(JobSubmissionClient):  # type: ignore[misc]
        def _do_request(self, method: str, endpoint: str, **options: Any) -> Any:
            options["timeout"] = _UPLOAD_SECONDS if method == "PUT" else request_seconds
            return super()._do_request(method, endpoint, **options)

    return Bounded(address)


class _Log:
    """Log that each connection sends from its beginning; writes each piece once."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._written = 0

    def take(self, text: str, begin: int = 0) -> int:
        """Takes a piece that begins there; returns where it ends."""
        end = begin + len(text)
        if end > self._written:
            self._write(text[max(self._written - begin, 0) :])
            self._written = end
        return end


def _job(details: Any) -> Job:
    status: Status = details.status.value.lower()
    return Job(
        id=details.submission_id or details.job_id or "",
        status=status,
        message=" ".join((details.message or "").split()),
        exit_code=details.driver_exit_code,
        metadata=tuple(sorted((details.metadata or {}).items())),
        started_at=(details.start_time or 0) / 1000,
    )


def _check_size(folder: Path, excludes: Sequence[str]) -> None:
    try:
        sizes = packed_sizes(folder, excludes)
    except OSError as error:
        raise ClusterError(f"--working-dir {folder} cannot be read ({error})") from error
    total = sum(sizes.values())
    if total > _MOST_BYTES:
        raise ClusterError(
            f"--working-dir {folder} has {_mib(total)} to send, and Ray's job server takes"
            f" {_mib(_MOST_BYTES)}: leave out what the sweep does not need with --exclude;"
            f" the heaviest folders and files are {', '.join(_heaviest(sizes))}"
        )


def _heaviest(sizes: Mapping[Path, int]) -> list[str]:
    entries = Counter[Path]()
    for path, size in sizes.items():
        for entry in (path, *path.parents[:-1]):
            entries[entry] += size
    return [f"{entry} ({_mib(size)})" for entry, size in entries.most_common(_LARGEST)]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:,.{0 if size_bytes >= 2**20 else 2}f} MiB"
