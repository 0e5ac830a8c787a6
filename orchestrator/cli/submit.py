"""`plimsoll submit`: a sweep as a job on a Ray cluster."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Minutes, Overrides, SpecPath, Trials, TrustedModules
from orchestrator.cluster.jobs import (
    DEFAULT_EXCLUDES,
    STOP_SECONDS,
    STUDY,
    Submission,
    active_job,
    can_resume,
    entrypoint,
    exit_code,
    job_id,
)
from orchestrator.cluster.runtime import ray_logs_enabled
from orchestrator.report.terminal import log_without_controls
from search_spaces.errors import DISTRIBUTION, UserError
from search_spaces.safety.files import is_file
from search_spaces.safety.redaction import without_password
from search_spaces.specification.load import load_spec, study_name, with_budget

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Job, JobServer
    from search_spaces.facts import CodeVersion
    from search_spaces.specification.schema import SweepSpec


_Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Job server of the cluster, such as http://HEAD:8265.",
        show_default="RAY_API_SERVER_ADDRESS, then RAY_ADDRESS",
    ),
]
_WorkingDir = Annotated[
    Path,
    typer.Option(metavar="FOLDER", help="Folder to send, with the specification, code and data."),
]
_Exclude = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PATTERN",
        help="Also leave this out of the folder; a pattern as in .gitignore. Repeatable."
        " Results, checkpoints, .git, virtual environments, files of keys and passwords, and"
        " files in .gitignore are never sent.",
    ),
]
_Env = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME[=VALUE]",
        help="Set a variable in the job's environment. Repeatable. Everyone who sees the job"
        " can read it: keep secrets in the cluster's environment.",
    ),
]
_Requirements = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Install these packages for the job, if the cluster's image lacks Plimsoll.",
        show_default=False,
    ),
]
_Retries = Annotated[
    int, typer.Option(min=0, help="How often to resubmit a job that dies; each resumes.")
]
_Follow = Annotated[
    bool, typer.Option("--follow/--no-follow", help="Show the job's log until it ends.")
]


def submit(
    spec_path: SpecPath,
    address: _Address = None,
    working_dir: _WorkingDir = Path(),
    exclude: _Exclude = None,
    env: _Env = None,
    requirements: _Requirements = None,
    trials: Trials = None,
    minutes: Minutes = None,
    retries: _Retries = 2,
    follow: _Follow = True,
    overrides: Overrides = None,
    trusted: TrustedModules = None,
) -> None:
    """Run the sweep as a job on a Ray cluster; resumes where an earlier job stopped."""
    from orchestrator.tracking.provenance import code_version

    _check_secrets(overrides or [])
    spec = with_budget(
        load_spec(spec_path, overrides or ()), trials=trials, minutes=minutes, validation=None
    )
    code = code_version(working_dir)
    submission = Submission(
        study=study_name(spec, spec_path),
        entrypoint=entrypoint(
            _inside(spec_path, working_dir),
            {
                "trials": trials,
                "minutes": minutes,
                "set": tuple(overrides or ()),
                "trust-module": tuple(trusted or ()),
                "debug": ray_logs_enabled() or None,
            },
        ),
        working_dir=str(working_dir.resolve()),
        excludes=(*DEFAULT_EXCLUDES, *(exclude or ())),
        environment=(
            ("RAY_JOB_STOP_WAIT_TIME_S", str(STOP_SECONDS)),
            *_run_context(code),
            *_named(env or []),  # last, to override the others
        ),
        requirements=None if requirements is None else str(_file(requirements)),
        metadata=_metadata(spec, study_name(spec, spec_path), spec_path, code),
    )

    from orchestrator.cluster.jobs import JobServer

    server = JobServer(address)
    job = _begin(server, submission)
    if not follow:
        print_line(f"Follow it: ray job logs --follow {job}. Stop it: ray job stop {job}.")
        return
    try:
        _follow(server, submission, job, retries)
    except KeyboardInterrupt:
        print_error(
            "The job keeps running. Repeat this command to follow it again; `ray job stop` ends it."
        )
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _begin(server: JobServer, submission: Submission) -> str:
    """Returns the job of the sweep: the one that runs already, or a new one."""
    jobs = server.jobs()
    if running := active_job(submission.study, jobs):
        print_line(
            f"Job {running.id} is already running study {submission.study}; not submitting another."
        )
        return running.id
    job = job_id(submission.study, jobs)
    server.submit(submission, job)
    print_line(f"Job {job} submitted to {server.address}: {submission.entrypoint}")
    return job


def _follow(server: JobServer, submission: Submission, job: str, retries: int) -> None:
    """Shows logs until a job ends by itself; resubmits one that died up to `retries` times."""
    while True:
        ended = server.follow(job, _write)
        if ended is not None and not can_resume(ended):
            break
        if retries == 0:
            break
        retries -= 1
        print_error(f"Job {job} {_ending(ended)}: a new job resumes where it stopped.")
        job = _begin(server, submission)
    if ended is None or ended.status != "succeeded":
        print_error(f"Job {job} {_ending(ended)}.{_advice(ended)}")
    code = ExitCode.NOTHING_FOUND if ended is None else exit_code(ended)
    if code:
        raise typer.Exit(code)


def _write(text: str) -> None:
    sys.stdout.write(log_without_controls(text))
    sys.stdout.flush()


def _ending(job: Job | None) -> str:
    if job is None:
        return "is no longer known to the cluster (its head node restarted)"
    if job.status == "stopped":
        return "was stopped"
    message = f" ({job.message})" if job.message else ""
    return f"has {job.status}" if job.exit_code else f"has {job.status}{message}"


def _advice(job: Job | None) -> str:
    if job is not None and job.exit_code == ExitCode.NO_SUCH_COMMAND:
        return (
            " Plimsoll is not installed on the cluster: use an image that has it"
            " (see k8s/README.md), or give --requirements."
        )
    return ""


def _inside(path: Path, folder: Path) -> str:
    """Returns the specification's path relative to the folder that is sent."""
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise UserError(
            f"{path} is not in --working-dir {folder.resolve()}: only that folder is sent to the"
            " cluster; choose one that contains the specification, its code and its data"
        ) from None


def _check_secrets(overrides: list[str]) -> None:
    """Refuses a password on the job's command line."""
    for text in overrides:
        key, _, value = text.partition("=")
        if "://" in value and without_password(value) != value:
            raise UserError(
                f"--set {key} contains a password, which everyone who sees the job can read: put"
                " the address into the cluster's environment (docs/shared.md)"
            )


def _file(path: Path) -> Path:
    if not is_file(path):
        raise UserError(f"--requirements {path}: no such file")
    return path.resolve()


def _named(variables: list[str]) -> tuple[tuple[str, str], ...]:
    """Splits NAME=VALUE; a name alone takes its value from this process's environment."""
    pairs = []
    for text in variables:
        name, equals, value = text.partition("=")
        if not equals and name not in os.environ:
            raise UserError(f"--env {name}: not set in this shell; set it, or give {name}=VALUE")
        pairs.append((name, value if equals else os.environ[name]))
    return tuple(pairs)


def _run_context(code: CodeVersion | None) -> tuple[tuple[str, str], ...]:
    from orchestrator.tracking.mlflow_fields import job_context
    from orchestrator.tracking.provenance import CONTEXT_VARIABLE, run_context, user

    user_tags = dict(run_context(os.environ.get(CONTEXT_VARIABLE, "")))
    return ((CONTEXT_VARIABLE, job_context(user(), code, user_tags)),)


def _metadata(
    spec: SweepSpec, study: str, spec_path: Path, code: CodeVersion | None
) -> tuple[tuple[str, str], ...]:
    metadata = {
        STUDY: study,
        "plimsoll_version": version(DISTRIBUTION),
        "plimsoll_spec": spec_path.name,
        "model": spec.model.name,
        "git_commit": f"{code.commit}{'-dirty' * code.modified}" if code else "",
    }
    return tuple((name, value) for name, value in metadata.items() if value)
