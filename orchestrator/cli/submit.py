"""`plimsoll submit`: the sweep as a job of a Ray cluster."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.console import say, say_error
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Overrides, SpecPath
from orchestrator.cluster.jobs import (
    EXCLUDED,
    STOP_SECONDS,
    STUDY,
    Submission,
    died,
    entrypoint,
    exit_code,
    job_id,
    under_way,
)
from orchestrator.cluster.runtime import shows_ray_logs
from search_spaces.errors import DISTRIBUTION, UserError
from search_spaces.spec.load import load_spec, study_name, with_budget
from search_spaces.spec.redaction import without_password

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Job, JobServer
    from search_spaces.facts import CodeVersion
    from search_spaces.spec.schema import SweepSpec


def submit(
    spec_path: SpecPath,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The cluster's job server, as http://HEAD:8265.",
            show_default="RAY_API_SERVER_ADDRESS, then RAY_ADDRESS",
        ),
    ] = None,
    working_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="What is sent: the specification, code and data.")
    ] = Path(),
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Leave out of it too, as in .gitignore; may be repeated. Results, checkpoints,"
            " .git, virtual environments and what .gitignore names are left out anyway.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=VALUE]",
            help="Set in the job's environment; may be repeated. Whoever sees the job can read it:"
            " secrets belong into the cluster's own.",
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Install these for the job, where the cluster's image lacks Plimsoll.",
            show_default=False,
        ),
    ] = None,
    trials: Annotated[
        int | None, typer.Option(help="Trials, in place of budget.trials.", show_default=False)
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes, in place of budget.minutes.", show_default=False)
    ] = None,
    retries: Annotated[
        int,
        typer.Option(min=0, help="Jobs that may follow one that dies; each goes on where it was."),
    ] = 2,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Show the job's log until it ends.")
    ] = True,
    overrides: Overrides = None,
) -> None:
    """Run the sweep as a job of a Ray cluster; goes on where an earlier job stopped."""
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
                "debug": shows_ray_logs() or None,
            },
        ),
        working_dir=str(working_dir.resolve()),
        excludes=(*EXCLUDED, *(exclude or ())),
        environment=(
            ("RAY_JOB_STOP_WAIT_TIME_S", str(STOP_SECONDS)),
            *_run_context(code),
            *_named(env or []),  # last, so that it replaces the others
        ),
        requirements=None if requirements is None else str(_file(requirements)),
        metadata=_metadata(spec, study_name(spec, spec_path), spec_path, code),
    )

    from orchestrator.cluster.jobs import JobServer

    server = JobServer(address)
    job = _begin(server, submission)
    if not follow:
        say(f"Follow it: ray job logs --follow {job}. Stop it: ray job stop {job}.")
        return
    try:
        _follow(server, submission, job, retries)
    except KeyboardInterrupt:
        say_error("The job goes on. To follow it again, submit the same; ray job stop ends it.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None


def _begin(server: JobServer, submission: Submission) -> str:
    """Submits the sweep, unless a job runs it already."""
    jobs = server.jobs()
    if there := under_way(submission.study, jobs):
        say(f"Job {there.id} runs study {submission.study} already: it is left to it.")
        return there.id
    job = job_id(submission.study, jobs)
    server.submit(submission, job)
    say(f"Job {job} submitted to {server.address}: {submission.entrypoint}")
    return job


def _follow(server: JobServer, submission: Submission, job: str, retries: int) -> None:
    """Shows logs until a job has ended by itself, or too many have died."""
    while True:
        ended = server.follow(job, _write)
        if ended is not None and not died(ended):
            break
        if retries == 0:
            break
        retries -= 1
        say_error(f"Job {job} {_how(ended)}: another one goes on where it was.")
        job = _begin(server, submission)
    if ended is None or ended.status != "succeeded":
        say_error(f"Job {job} {_how(ended)}.{_advice(ended)}")
    code = ExitCode.NOTHING_FOUND if ended is None else exit_code(ended)
    if code:
        raise typer.Exit(code)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _how(job: Job | None) -> str:
    if job is None:
        return "is not known to the cluster any more, whose head has begun anew"
    if job.status == "stopped":
        return "was stopped"
    told = f" ({job.message})" if job.message else ""
    return f"has {job.status}" if job.exit_code else f"has {job.status}{told}"


def _advice(job: Job | None) -> str:
    if job is not None and job.exit_code == ExitCode.NO_SUCH_COMMAND:
        return (
            " Plimsoll is not installed on the cluster: take an image that has it"
            " (see k8s/README.md), or name --requirements."
        )
    return ""


def _inside(path: Path, folder: Path) -> str:
    """The specification's path from the folder that is sent.

    Raises:
        UserError: If it lies elsewhere.
    """
    try:
        return path.resolve().relative_to(folder.resolve()).as_posix()
    except ValueError:
        raise UserError(
            f"{path} is not in --working-dir {folder.resolve()}: only that folder is sent to the"
            " cluster; name one that holds the specification, its code and its data"
        ) from None


def _check_secrets(overrides: list[str]) -> None:
    """Refuses a password on the job's command line.

    Raises:
        UserError: If an override is an address that holds one.
    """
    for text in overrides:
        key, _, value = text.partition("=")
        if "://" in value and without_password(value) != value:
            raise UserError(
                f"--set {key} holds a password, which whoever sees the job could read: name the"
                " address in the cluster's environment (docs/shared.md)"
            )


def _file(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"--requirements {path}: there is no such file")
    return path.resolve()


def _named(variables: list[str]) -> tuple[tuple[str, str], ...]:
    """Names and values; of a name alone the value here."""
    pairs = []
    for told in variables:
        name, given, value = told.partition("=")
        if not given and name not in os.environ:
            raise UserError(f"--env {name}: it is not set here; set it, or say {name}=VALUE")
        pairs.append((name, value if given else os.environ[name]))
    return tuple(pairs)


def _run_context(code: CodeVersion | None) -> tuple[tuple[str, str], ...]:
    """The variable that tells the job its user and its code's version."""
    from orchestrator.tracking.mlflow_fields import job_context
    from orchestrator.tracking.provenance import CONTEXT_VARIABLE, run_context, user

    given = dict(run_context(os.environ.get(CONTEXT_VARIABLE, "")))
    return ((CONTEXT_VARIABLE, job_context(user(), code, given)),)


def _metadata(
    spec: SweepSpec, study: str, spec_path: Path, code: CodeVersion | None
) -> tuple[tuple[str, str], ...]:
    told = {
        STUDY: study,
        "plimsoll_version": version(DISTRIBUTION),
        "plimsoll_spec": spec_path.name,
        "model": spec.model.name,
        "git_commit": f"{code.commit}{'-dirty' * code.modified}" if code else "",
    }
    return tuple((name, value) for name, value in told.items() if value)
