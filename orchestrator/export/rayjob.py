"""Export for KubeRay: a RayJob that runs the Ray Train script on a temporary cluster."""

import math
import re
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from packaging.version import Version

from orchestrator.export import ray_train
from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import quotable_title, render_template
from orchestrator.export.source import ExportSource, slice_of
from search_spaces.errors import DISTRIBUTION, require
from search_spaces.settings.export_manifest import EXPORTED_FILE, SPEC_FILE

JOB, KUSTOMIZATION = "rayjob.yaml", "kustomization.yaml"
COMMAND = "kubectl apply -k ."
_GIB = 2**30
_NAME_LENGTH = 47  # KubeRay's limit for the name of a RayJob
# Host memory of a pod [GiB], estimated: trials measure host memory of CPU ranks only.
_BARE_RANK_GIB = {"cpu": 1, "cuda": 8, "tpu": 8}  # torch, DeepSpeed, CUDA libraries, and a margin
_SHARED_GIB = {"cpu": 1, "cuda": 4, "tpu": 4}  # /dev/shm per rank: NCCL, loaders
_RAY_GIB = 2
_WEIGHT_BYTES, _STATE_BYTES = 4, 16  # fp32 weights; weights, gradients and Adam's two moments


def export(source: ExportSource) -> Bundle:
    """Returns the job, and a kustomization that mounts the script's files in its pods."""
    require("ray")  # the job's image has the version that is installed here
    files = ray_train.files_of(source)
    words = job_words(source, files) | {"ray_version": version("ray"), "resource": JOB}
    manifests = {
        JOB: render_template("rayjob.yaml.jinja", **words),
        KUSTOMIZATION: render_template("kustomization.yaml.jinja", **words),
    }
    return Bundle(
        format="rayjob",
        files=manifests | files,
        command=COMMAND,
        local=False,
        carries=False,
    )


def job_words(source: ExportSource, files: Iterable[str]) -> dict[str, Any]:
    """Returns the values of templates of a job on Kubernetes; the files are mounted."""
    plan, cluster = source.plan, source.spec.cluster
    ranks_per_host, tpus = math.ceil(plan.world_size / source.hosts), slice_of(source)
    uses_nvme = "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    return {
        "title": quotable_title(source),
        "command": COMMAND,
        "name": job_name(source),
        "hosts": source.hosts,
        "cuda": source.device == "cuda",
        "tpus": tpus,
        "environment": tuple(tpus["environment"].items()) if tpus else (),
        "ranks_per_host": ranks_per_host,
        "cpus": ranks_per_host * cluster.cpus_per_worker + 1,
        "memory_gib": memory_gib(source, ranks_per_host),
        "shared_gib": 1 + ranks_per_host * _SHARED_GIB[source.device],
        "product": _product(source),
        "accelerator": cluster.accelerator,
        "nvme": cluster.nvme_folder if uses_nvme else None,
        "files": (*files, EXPORTED_FILE, SPEC_FILE),
        "version": Version(version(DISTRIBUTION)).base_version,  # that images are tagged with
    }


def job_name(source: ExportSource) -> str:
    """Returns the name of the job and its ConfigMap: a DNS label, for any name of a study."""
    return dns_label(f"train-{source.study}", f"-{source.record.number}")


def dns_label(text: str, ending: str = "") -> str:
    """Returns a text as the name of a RayJob, which is a DNS label; the ending is kept whole."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower())
    return label[: _NAME_LENGTH - len(ending)].rstrip("-") + ending


def memory_gib(source: ExportSource, ranks: int) -> int:
    """Returns the host memory of a pod with this number of ranks [GiB]."""
    plan, model = source.plan, source.model
    if source.device == "cpu":
        rank_bytes = source.measured.memory.peak_bytes
    else:
        rank_bytes = _WEIGHT_BYTES * model.parameters  # the script builds the model on the host
        if "cpu" in (plan.offload_optimizer, plan.offload_parameters):
            rank_bytes += _STATE_BYTES * model.trainable_parameters // plan.data
    rank_gib = rank_bytes / _GIB + _BARE_RANK_GIB[source.device] + _SHARED_GIB[source.device]
    return math.ceil(ranks * rank_gib + _RAY_GIB)


def _product(source: ExportSource) -> str:
    # NVIDIA's GPU feature discovery labels nodes with this name
    fingerprint = source.record.fingerprint
    if fingerprint is None or fingerprint.device != "cuda":
        return ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", fingerprint.device_name).strip("-._")
