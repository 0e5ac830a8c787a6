"""A RayJob of KubeRay: the script of Ray Train on a cluster of its own, gone when it has ended."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from importlib.metadata import version

from orchestrator.export import ray_train
from orchestrator.export.bundle import Bundle
from orchestrator.export.scripts import filled, quotable_title
from orchestrator.export.source import ExportSource
from search_spaces.errors import DISTRIBUTION, require
from search_spaces.plan import Plan
from search_spaces.settings.export_manifest import EXPORTED_FILE, SPEC_FILE

JOB, KUSTOMIZATION = "rayjob.yaml", "kustomization.yaml"
_COMMAND = "kubectl apply -k ."
_GIB = 2**30
_NAME_LENGTH = 47  # a RayJob's, by KubeRay's operator
# of a pod, in GiB, where nothing was measured: host memory is, of ranks on CPUs
_BARE_RANK_GIB = {"cpu": 1, "cuda": 8}  # torch, DeepSpeed, CUDA's libraries, and room
_SHARED_GIB = {"cpu": 1, "cuda": 4}  # of /dev/shm for each rank: NCCL, loaders
_RAY_GIB = 2
_WEIGHT_BYTES, _STATE_BYTES = 4, 16  # fp32 weights; with gradients and Adam's two moments


def refusals(plan: Plan) -> Iterator[str]:
    """Why the job cannot say this plan: why its script cannot."""
    yield from ray_train.refusals(plan)


def export(taken: ExportSource) -> Bundle:
    """The job, and a kustomization that puts the script's files where the job reads them."""
    require("ray")  # the job's image has the version that is installed here
    files, plan = ray_train.files_of(taken), taken.plan
    here = math.ceil(plan.world_size / taken.hosts)
    words = {
        "title": quotable_title(taken),
        "command": _COMMAND,
        "name": job_name(taken),
        "hosts": taken.hosts,
        "cuda": taken.device == "cuda",
        "ranks_here": here,
        "cpus": here * taken.spec.cluster.cpus_per_worker + 1,
        "memory_gib": memory_gib(taken, here),
        "shared_gib": 1 + here * _SHARED_GIB[taken.device],
        "product": _product(taken),
        "accelerator": plan.accelerator,
        "nvme": taken.spec.cluster.nvme_folder if _uses_nvme(plan) else None,
        "files": (*files, EXPORTED_FILE, SPEC_FILE),
        "version": version(DISTRIBUTION),
        "ray_version": version("ray"),
    }
    made = {JOB: filled("rayjob.yaml.jinja", **words)}
    made[KUSTOMIZATION] = filled("kustomization.yaml.jinja", **words)
    unsaid = (*ray_train.caveats(taken), *_unsaid(taken, words["memory_gib"]))
    return Bundle(
        format="rayjob",
        files=made | files,
        command=_COMMAND,
        unsaid=unsaid,
        local=False,
        carries=False,
    )


def job_name(taken: ExportSource) -> str:
    """What the job and its ConfigMap are called: a DNS label, whatever the study is called."""
    ending = f"-{taken.record.number}"
    study = re.sub(r"[^a-z0-9]+", "-", taken.study.lower())
    return f"train-{study}"[: _NAME_LENGTH - len(ending)].rstrip("-") + ending


def memory_gib(taken: ExportSource, ranks: int) -> int:
    """Of a pod with so many ranks, in GiB."""
    plan, model = taken.plan, taken.model
    if taken.device == "cpu":
        rank = taken.told.memory.peak_bytes
    else:
        rank = _WEIGHT_BYTES * model.parameters  # the script makes the whole model on the host
        if "cpu" in (plan.offload_optimizer, plan.offload_parameters):
            rank += _STATE_BYTES * model.trainable_parameters // plan.data
    each = rank / _GIB + _BARE_RANK_GIB[taken.device] + _SHARED_GIB[taken.device]
    return math.ceil(ranks * each + _RAY_GIB)


def _uses_nvme(plan: Plan) -> bool:
    return "nvme" in (plan.offload_optimizer, plan.offload_parameters)


def _product(taken: ExportSource) -> str:
    """What NVIDIA's feature discovery labels the nodes with that were measured."""
    seen = taken.record.fingerprint
    if seen is None or seen.device != "cuda":
        return ""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", seen.device_name).strip("-._")


def _unsaid(taken: ExportSource, memory: object) -> Iterator[str]:
    yield (
        "This job was checked against KubeRay's definitions and rules, and its script was run by"
        " Ray: it was tried on no Kubernetes cluster."
    )
    yield (
        "The image is Plimsoll's (`make image`), which has to hold your model and data too. Name"
        " your registry's: `kustomize edit set image plimsoll=REGISTRY/plimsoll:TAG`."
    )
    yield (
        f"The pod of each host asks for {memory} GiB of its memory, which is reckoned and not"
        " measured: set memory and cpu to what your nodes have."
    )
    yield (
        "It runs `--steps 20`: put the steps of your training into the entrypoint. A job that"
        " ended starts again after `kubectl delete -k .`."
    )
    if _uses_nvme(taken.plan):
        yield (
            f"What is offloaded to {taken.spec.cluster.nvme_folder} lies in an emptyDir: put a"
            " volume of the node's NVMe drive in its place."
        )
