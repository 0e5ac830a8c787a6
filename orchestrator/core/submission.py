"""What a sweep is on a cluster's job server: one job after the other, until one has ended well."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

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
