"""Our own rules for what KubeRay runs: the traps that neither schema nor operator sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from search_spaces.spec.schema import SweepSpec
from tests.k8s.pods import pods, ray_clusters
from tests.k8s.quantities import amount
from tests.k8s.rendering import Resource, plain_name

TWICE_READ = set("$`\"'\\!;&|<>*?~#")  # what either of two shells would take for its own


def complaints(resources: list[Resource], *, ray: str, image: str) -> Iterator[str]:
    """Yields what breaks a rule; `ray` is the pinned version, `image` the image with its tag."""
    jobs = [resource for resource in resources if resource["kind"] == "RayJob"]
    clusters = [cluster for resource in resources for cluster in ray_clusters(resource)]
    for cluster in clusters:
        yield from _cluster(cluster, ray)
    for job in jobs:
        yield from _job(job["spec"], clusters)
    for pod in pods(resources):
        if pod.owner in ("RayJob", "RayCluster"):
            images = {container["image"] for container in pod.containers}
            yield from (f"{pod.name}: {one} is not {image}" for one in images - {image})
    for budget in (r for r in resources if r["kind"] == "PodDisruptionBudget"):
        labels = budget["spec"]["selector"]["matchLabels"].items()
        chosen = [pod for pod in pods(resources) if labels <= pod.labels.items()]
        if "maxUnavailable" in budget["spec"] and any(p.owner.startswith("Ray") for p in chosen):
            yield f"{budget['metadata']['name']}: maxUnavailable needs a scale subresource"
        if any(pod.labels.get("ray.io/node-type") == "worker" for pod in chosen):
            yield f"{budget['metadata']['name']}: workers can be replaced"
    if clusters:
        yield from _spec(resources, jobs[0]["spec"], clusters[0])


def _cluster(cluster: dict[str, Any], ray: str) -> Iterator[str]:
    if cluster.get("rayVersion") != ray:
        yield f"rayVersion {cluster.get('rayVersion')} is not the pinned {ray}"
    if cluster.get("authOptions", {}).get("mode") != "token":
        yield "the job port is open to all: authOptions.mode is not token"
    head = cluster["headGroupSpec"]
    if head.get("rayStartParams", {}).get("num-cpus") != "0":
        yield "trials may land on the head: num-cpus is not 0"
    if cluster.get("enableInTreeAutoscaling"):
        options = cluster.get("autoscalerOptions", {})
        if options.get("version") != "v2":
            yield "the autoscaler's version is not written out as v2"
    for group in [head, *cluster.get("workerGroupSpecs", ())]:
        yield from _group(group)


def _group(group: dict[str, Any]) -> Iterator[str]:
    name, pod = group.get("groupName", "head"), group["template"]["spec"]
    container = pod["containers"][0]
    resources = container["resources"]
    if resources["requests"] != resources["limits"]:
        yield f"{name}: Ray offers its limits, Kubernetes promises its requests: they differ"
    if pod.get("restartPolicy") != "Never":
        yield f"{name}: a restarted Ray node is another one: restartPolicy is not Never"
    ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
    if ports.get("metrics") != 8080:
        yield f"{name}: no port metrics"
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    shared = volumes.get(mounts.get("/dev/shm", ""), {}).get("emptyDir", {})
    if shared.get("medium") != "Memory":
        yield f"{name}: /dev/shm is not in memory"
    elif int(group["rayStartParams"]["object-store-memory"]) > amount(shared["sizeLimit"]) / 2:
        yield f"{name}: the object store leaves NCCL less than half of /dev/shm"


def _job(job: dict[str, Any], clusters: list[dict[str, Any]]) -> Iterator[str]:
    runtime = yaml.safe_load(job.get("runtimeEnvYAML", "{}"))
    values = [*job.get("metadata", {}).values(), *runtime.get("env_vars", {}).values()]
    for text in [job["entrypoint"], *values]:
        if strange := TWICE_READ & set(text):
            yield f"two shells read {text!r}, with {' '.join(sorted(strange))} in it"
    yield from (f"runtimeEnvYAML has {field}" for field in runtime.keys() - {"env_vars"})
    grace = float(runtime.get("env_vars", {}).get("RAY_JOB_STOP_WAIT_TIME_S", 3))
    for cluster in clusters:
        head = cluster["headGroupSpec"]["template"]["spec"]
        if not 3 < grace < head.get("terminationGracePeriodSeconds", 30):
            yield f"a stopped job has {grace:g} s, its pod has less"
    for field in ("preRunningDeadlineSeconds", "activeDeadlineSeconds"):
        if field not in job:
            yield f"no {field}: it may wait for ever"
    if "rayClusterSpec" in job:
        if not job.get("backoffLimit"):
            yield "no backoffLimit: a lost head ends the sweep"
        if not (job.get("shutdownAfterJobFinishes") and job.get("ttlSecondsAfterFinished")):
            yield "the cluster stays after the job"


def _spec(resources: list[Resource], job: dict[str, Any], cluster: dict[str, Any]) -> Iterator[str]:
    """The sweep that is mounted: it can be read, fits the nodes and ends before its deadline."""
    config = next(resource for resource in resources if plain_name(resource) == "sweep-spec")
    mounted = f"/etc/plimsoll/{next(iter(config['data']))}"
    if mounted not in job["entrypoint"].split():
        yield f"the entry point does not name {mounted}"
    spec = SweepSpec.model_validate(yaml.safe_load(next(iter(config["data"].values()))))
    if spec.budget.minutes is None or spec.budget.minutes * 60 >= job["activeDeadlineSeconds"]:
        yield "the sweep's budget.minutes reach its activeDeadlineSeconds"
    ranks = 0
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        slots = amount(limits["cpu"]) // spec.cluster.cpus_per_worker
        if spec.cluster.device == "cuda":
            slots = min(slots, amount(limits.get("nvidia.com/gpu", 0)))
        ranks += int(slots) * group["maxReplicas"]
    if spec.cluster.workers != "auto" and spec.cluster.workers > ranks:
        yield f"the sweep wants {spec.cluster.workers} ranks, the nodes have room for {ranks}"
