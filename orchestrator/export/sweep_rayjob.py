"""A sweep as a RayJob of KubeRay, with its specification in a ConfigMap."""

from importlib.metadata import version
from pathlib import Path

import yaml

from orchestrator.export.cluster_job import ClusterJob
from orchestrator.export.scripts import render_template
from search_spaces.errors import UserError
from search_spaces.specification.sections import ClusterSpec

_RANK_GIB = {True: 64, False: 4}  # of host memory, by CUDA; unless cluster.host_memory_gib
_SHARED_GIB = {True: 8, False: 1}  # of /dev/shm


def sweep_manifests(
    job: ClusterJob, cluster: ClusterSpec, spec_path: Path, **pods: str | None
) -> str:
    """Returns the manifests of a sweep: a ConfigMap and a RayJob.

    Args:
        job: The command, which finds the specification in /etc/plimsoll, and its nodes.
        cluster: The specification's section.
        spec_path: Its file. It is mounted with the Python files beside it.
        pods: Names of `data_volume`, a claim that is mounted at /data, and of the Secrets
            `hf_secret`, whose key HF_TOKEN is the Hub's token, and `pull_secret`, of a registry.

    Raises:
        UserError: If the command needs quotes, which two shells would take away.
    """
    if set(job.command) & set("'\"$"):
        raise UserError(
            f"--to kuberay: two shells read the command {job.command}: put values with spaces or"
            " special characters into the specification"
        )
    words: dict[str, object] = {**pods, "storage_secret": "plimsoll-databases"}
    words |= {"title": job.name, "name": job.name, "command": "kubectl apply -f FILE"}
    words |= {"entrypoint": job.command, "retries": job.retries, "image": job.image}
    words |= {"hosts": job.nodes, "ranks_per_host": job.ranks, "cuda": job.gpus > 0}
    words |= {"cpus": job.cpus + 1, "nvme": cluster.nvme_folder, "product": job.gpu}
    words |= {"accelerator": cluster.accelerator, "ray_version": version("ray")}
    words |= {"environment": (("PYTHONPATH", "/etc/plimsoll"), *job.environment)}
    words["memory_gib"] = int(job.memory_gib or job.ranks * _RANK_GIB[job.gpus > 0] + 2)
    words["shared_gib"] = 1 + job.ranks * _SHARED_GIB[job.gpus > 0]
    files = {file.name: file.read_text() for file in (spec_path, *spec_path.parent.glob("*.py"))}
    configmap = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job.name}}
    text = yaml.safe_dump(configmap | {"data": files})
    return f"{text}---\n{render_template('rayjob.yaml.jinja', **words)}"
