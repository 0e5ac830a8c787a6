"""`plimsoll submit`: a sweep as a job of Ray, Slurm, SkyPilot or KubeRay."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from orchestrator.cli.console import print_error, print_line
from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Minutes, Overrides, SpecPath, Trials, TrustedModules
from orchestrator.cli.schedulers import detach, send_file, send_to_slurm, write_log
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
from search_spaces.errors import DISTRIBUTION, UserError
from search_spaces.safety.files import is_file
from search_spaces.safety.redaction import without_password
from search_spaces.specification.load import load_spec, study_name, with_budget

if TYPE_CHECKING:
    from orchestrator.cluster.jobs import Job, JobServer
    from orchestrator.export.cluster_job import ClusterJob
    from search_spaces.facts import CodeVersion
    from search_spaces.specification.schema import SweepSpec


_OF_TARGETS: Mapping[str, tuple[str, ...]] = {  # options that not all targets have
    **dict.fromkeys(("address", "exclude"), ("ray",)),
    "requirements": ("ray", "sky"),
    **dict.fromkeys(("nodes", "gpus_per_node", "gpu", "image"), ("slurm", "sky", "kuberay")),
    **dict.fromkeys(("partition", "account", "time", "sbatch"), ("slurm",)),
    **dict.fromkeys(("data_volume", "hf_secret", "pull_secret"), ("kuberay",)),
}
_WORD = re.compile(r"[\w.,:=+@/%*#~-]+")
_Target = Literal["ray", "slurm", "sky", "kuberay"]
_Text = str | None


def _option(metavar: str | None, **settings: Any) -> Any:
    return typer.Option(metavar=metavar, show_default=False, **settings)


def submit(
    context: typer.Context,
    spec_path: SpecPath,
    to: Annotated[_Target, typer.Option()] = "ray",
    dry_run: Annotated[bool, typer.Option("--dry-run")] = False,
    nodes: Annotated[int | None, _option(None, min=1)] = None,
    gpus_per_node: Annotated[int | None, _option(None, min=1)] = None,
    gpu: Annotated[_Text, _option("KIND")] = None,  # noqa: ARG001
    image: Annotated[_Text, _option("IMAGE")] = None,  # noqa: ARG001
    partition: Annotated[_Text, _option("NAME")] = None,  # noqa: ARG001
    account: Annotated[_Text, _option("NAME")] = None,  # noqa: ARG001
    time: Annotated[_Text, _option("LIMIT")] = None,  # noqa: ARG001
    sbatch: Annotated[list[str] | None, _option("OPTION")] = None,  # noqa: ARG001
    data_volume: Annotated[_Text, _option("CLAIM")] = None,  # noqa: ARG001
    hf_secret: Annotated[_Text, _option("NAME")] = None,  # noqa: ARG001
    pull_secret: Annotated[_Text, _option("NAME")] = None,  # noqa: ARG001
    address: Annotated[_Text, _option("URL")] = None,  # noqa: ARG001
    working_dir: Annotated[Path, _option("FOLDER")] = Path(),  # noqa: ARG001
    exclude: Annotated[list[str] | None, _option("PATTERN")] = None,  # noqa: ARG001
    env: Annotated[list[str] | None, _option("NAME[=VALUE]")] = None,  # noqa: ARG001
    requirements: Annotated[Path | None, _option("FILE")] = None,  # noqa: ARG001
    trials: Trials = None,
    minutes: Minutes = None,
    retries: Annotated[int, typer.Option(min=0)] = 2,
    follow: Annotated[bool, typer.Option("--follow/--no-follow")] = True,
    overrides: Overrides = None,
    trusted: TrustedModules = None,
) -> None:
    """Run the sweep as a job on a cluster; resumes where an earlier job stopped."""
    from orchestrator.export.cluster_job import ranks_per_node

    given = context.params
    _check_options(given, to)
    _check_secrets(overrides or [])
    spec = with_budget(
        load_spec(spec_path, overrides or ()), trials=trials, minutes=minutes, validation=None
    )
    ranks = 0 if to == "ray" else ranks_per_node(spec.cluster, nodes or 1, gpus_per_node)
    options = {
        "trials": trials,
        "minutes": minutes,
        "set": (*(overrides or ()), *_sets(spec, (nodes or 1) * ranks, given["data_volume"])),
        "trust-module": tuple(trusted or ()),
        "debug": ray_logs_enabled() or None,
    }
    submission = _submission(given, spec, options)
    if to == "ray":
        _submit_to_ray(submission, given["address"], retries, follow=follow, send=not dry_run)
        return
    job, file = _job_file(given, spec, submission, ranks)
    if dry_run:
        write_log(file)
    elif to == "slurm":
        send_to_slurm(job, file, Path(submission.working_dir), follow=follow)
    else:
        send_file(to, job, file)


def _check_options(given: Mapping[str, Any], target: str) -> None:
    """Refuses options of other targets, and values that would change a job file's syntax."""
    for name, targets in _OF_TARGETS.items():
        option, value = f"--{name.replace('_', '-')}", given[name]
        if value and target not in targets:
            raise UserError(f"{option} is for --to {' and '.join(targets)}, not for {target}")
        for text in (value or ()) if name == "sbatch" else [value] * isinstance(value, str):
            if not _WORD.fullmatch(text):
                raise UserError(f"{option} {text!r}: give one word, without spaces and quotes")


def _sets(spec: SweepSpec, slots: int, data_volume: str | None) -> Iterator[str]:
    """Yields keys that the job's size and volume decide: a sweep awaits the nodes of all ranks."""
    if slots and spec.cluster.workers == "auto":
        yield f"cluster.workers={spec.cluster.ranks_of(slots)}"
    if data_volume and spec.study.folder == "plimsoll-runs":  # the default
        yield "study.folder=/data/plimsoll-runs"


def _submission(
    given: Mapping[str, Any], spec: SweepSpec, options: Mapping[str, object]
) -> Submission:
    from orchestrator.tracking.provenance import code_version

    spec_path, folder, packages = given["spec_path"], given["working_dir"], given["requirements"]
    code, study = code_version(folder), study_name(spec, spec_path)
    path = _inside(spec_path, folder)
    path = f"/etc/plimsoll/{spec_path.name}" if given["to"] == "kuberay" else path
    return Submission(
        study=study,
        entrypoint=entrypoint(path, options),
        working_dir=str(folder.resolve()),
        excludes=(*DEFAULT_EXCLUDES, *(given["exclude"] or ())),
        environment=(
            ("RAY_JOB_STOP_WAIT_TIME_S", str(STOP_SECONDS)),
            *_run_context(code),
            *_named(given["env"] or []),  # last, to override the others
        ),
        requirements=None if packages is None else str(_file(packages)),
        metadata=_metadata(spec, study, spec_path, code),
    )


def _job_file(
    given: Mapping[str, Any], spec: SweepSpec, submission: Submission, ranks: int
) -> tuple[ClusterJob, str]:
    """Returns a job of a scheduler, and the file that starts it."""
    from orchestrator.export.cluster_job import SBATCH, SKY, ClusterJob, render_job
    from orchestrator.export.rayjob import dns_label
    from orchestrator.export.sweep_rayjob import sweep_manifests

    job = ClusterJob(
        name=dns_label(f"plimsoll-{submission.study}"),
        command=submission.entrypoint,
        nodes=given["nodes"] or 1,
        ranks=ranks,
        cpus=ranks * spec.cluster.cpus_per_worker,
        gpus=0 if spec.cluster.device == "cpu" else ranks,
        memory_gib=spec.cluster.host_memory_gib,
        gpu=given["gpu"],
        image=given["image"],
        environment=submission.environment[1:],  # without Ray's
        retries=given["retries"],
    )
    target, folder, requirements = given["to"], submission.working_dir, submission.requirements
    if target == "slurm":
        keys = (f"--{key}={given[key]}" for key in ("partition", "account", "time") if given[key])
        path = "" if job.image else quote(str(Path(sys.executable).parent))
        options = (*keys, *(given["sbatch"] or ()))
        return job, render_job(SBATCH, job, path=path, options=options)
    if not (job.image or requirements):
        raise UserError(f"--to {target}: give --image, an image with Plimsoll (docs/kubernetes.md)")
    if target == "sky":
        if job.gpus and not job.gpu:
            raise UserError("--to sky: give SkyPilot's name of the GPU, such as --gpu H100")
        sent = _inside(Path(requirements), Path(folder)) if requirements else ""
        return job, render_job(
            SKY, job, workdir=folder, setup=sent and f"pip install -r {quote(sent)}"
        )
    names = {name: given[name] for name in ("data_volume", "hf_secret", "pull_secret")}
    return job, sweep_manifests(job, spec.cluster, given["spec_path"], **names)


def _submit_to_ray(
    submission: Submission, address: str | None, retries: int, *, follow: bool, send: bool
) -> None:
    if not send:
        sent = {"entrypoint": submission.entrypoint, "runtime_env": submission.runtime_env}
        write_log(json.dumps(sent, indent=2) + "\n")
        return

    from orchestrator.cluster.jobs import JobServer

    server = JobServer(address)
    job = _begin(server, submission)
    if not follow:
        print_line(f"Follow it: ray job logs --follow {job}. Stop it: ray job stop {job}.")
        return
    try:
        _follow(server, submission, job, retries)
    except KeyboardInterrupt:
        detach("ray job stop")


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
        ended = server.follow(job, write_log)
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
            " (see docs/kubernetes.md), or give --requirements."
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
                " the address into the cluster's environment (docs/team.md)"
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
        if not name.isidentifier():
            raise UserError(f"--env {text}: {name!r} is not the name of a variable")
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
