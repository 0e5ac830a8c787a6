"""A command on Ray nodes of one kind, for the job files of Slurm and SkyPilot."""

import math
from dataclasses import dataclass

from orchestrator.export import ray_train
from orchestrator.export.bundle import Bundle
from orchestrator.export.rayjob import job_name
from orchestrator.export.scripts import SCRIPT, render_template
from orchestrator.export.source import ExportSource
from search_spaces.errors import DISTRIBUTION, UserError
from search_spaces.specification.sections import ClusterSpec

SBATCH, SKY = "job.sbatch", "task.yaml"  # files, and their templates with another suffix


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A driver's command, and the nodes of its Ray cluster."""

    name: str
    command: str  # for a shell on the first node
    nodes: int
    ranks: int  # that a node has room for
    cpus: int  # cores of a node
    gpus: int  # of a node: one for each rank, or none
    memory_gib: float | None = None  # of a node's host; None: the scheduler's default
    gpu: str | None = None  # kind, in the scheduler's words; None: any
    image: str | None = None  # with Plimsoll; None: the nodes' own files
    environment: tuple[tuple[str, str], ...] = ()
    retries: int = 0  # how often a job that machines ended is started again


def render_job(file: str, job: ClusterJob, **words: object) -> str:
    """Returns a job file, which starts Ray on the nodes of a job and runs its command.

    Args:
        file: `SBATCH` or `SKY`.
        job: The command and its nodes.
        words: Of `SBATCH`: `path`, a folder of programs, and `options` of sbatch. Of `SKY`:
            `workdir`, the folder to send, and `setup`, a command that installs packages.
    """
    return render_template(f"{file}.jinja", job=job, **words)


def export_sbatch(source: ExportSource) -> Bundle:
    """Returns the script of Ray Train, and the job that runs it on as many nodes as were used."""
    return _export(source, "slurm", f"sbatch {SBATCH}", None, path="", options=())


def export_sky(source: ExportSource) -> Bundle:
    """Returns the script of Ray Train, and the task that runs it on as many nodes as were used."""
    fingerprint, setup = source.record.fingerprint, f"pip install '{DISTRIBUTION}[ray]'"
    name = "" if fingerprint is None else fingerprint.device_name.removeprefix("NVIDIA ")
    gpu = source.spec.cluster.accelerator or name.split(" ")[0]
    command = f"sky launch --secret RAY_AUTH_TOKEN=$(openssl rand -hex 32) {SKY}"
    return _export(source, "sky", command, gpu, workdir=".", setup=setup)


def _export(
    source: ExportSource, name: str, command: str, gpu: str | None, **words: object
) -> Bundle:
    ranks, file = math.ceil(source.plan.world_size / source.hosts), command.rpartition(" ")[2]
    job = ClusterJob(
        name=job_name(source),
        command=f"python {SCRIPT} --steps 20",
        nodes=source.hosts,
        ranks=ranks,
        cpus=ranks * source.spec.cluster.cpus_per_worker,
        gpus=ranks if source.device == "cuda" else 0,
        gpu=gpu,
    )
    return Bundle(
        format=name,
        files={file: render_job(file, job, **words)} | ray_train.files_of(source),
        command=command,
        local=False,
    )


def ranks_per_node(cluster: ClusterSpec, nodes: int, gpus_per_node: int | None) -> int:
    """Returns the ranks of a sweep that each node has room for.

    Raises:
        UserError: If neither options nor `cluster` say how many, or the ranks do not fit.
    """
    if cluster.device == "tpu":
        raise UserError("cluster.device is tpu: submit to a Ray cluster of TPU nodes (--to ray)")
    if cluster.device == "cpu" and gpus_per_node is not None:
        raise UserError("--gpus-per-node is given, but cluster.device is cpu: leave it out")
    if cluster.workers == "auto":
        if gpus_per_node is None:
            key = "cluster.workers" if cluster.device == "cpu" else "--gpus-per-node"
            raise UserError(f"cluster.workers is auto, so the size of a node is open: give {key}")
        return gpus_per_node
    ranks = cluster.workers * (1 if cluster.groups == "auto" else cluster.groups)
    if gpus_per_node is not None and ranks > nodes * gpus_per_node:
        raise UserError(
            f"cluster.workers and cluster.groups ask for {ranks} GPUs, but --nodes {nodes} with"
            f" --gpus-per-node {gpus_per_node} have {nodes * gpus_per_node}"
        )
    return gpus_per_node or math.ceil(ranks / nodes)
