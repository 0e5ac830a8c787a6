"""Rules of KubeRay's operator beyond the schema: it marks a resource ValidationFailed.

Source: `ray-operator/controllers/ray/utils/validation.go` of KubeRay v1.7.0, told in our words.
Rules for fields that `k8s/` leaves out are told as a refusal of the field.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from tests.k8s.rendering import Resource

MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")
NAME_LENGTHS = {"RayJob": 47, "RayCluster": 53}
GATED = ("networkPolicy", "tlsOptions", "historyServerOptions")  # feature gates that are off
POLICIES = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")  # in the order of what they leave


def complaints(resource: Resource) -> Iterator[str]:
    """Yields why the operator would refuse a RayJob or a RayCluster."""
    kind, name = resource["kind"], resource["metadata"]["name"]
    if len(name) > NAME_LENGTHS[kind]:
        yield f"the name has {len(name)} characters, {kind} takes {NAME_LENGTHS[kind]}"
    if not re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name):
        yield f"the name {name} is no DNS-1035 label"
    if kind == "RayJob":
        yield from _job(resource["spec"])
    else:
        yield from cluster_complaints(resource["spec"])


def _job(job: dict[str, Any]) -> Iterator[str]:
    mode = job.get("submissionMode", "K8sJobMode")
    if mode not in MODES:
        yield f"submissionMode {mode} is none of {', '.join(MODES)}"
    cluster, selector = job.get("rayClusterSpec"), job.get("clusterSelector", {})
    if bool(cluster) == bool(selector.get("ray.io/cluster")):
        yield "exactly one of rayClusterSpec and clusterSelector with ray.io/cluster"
    if selector and (job.get("suspend") or job.get("backoffLimit") or mode == "SidecarMode"):
        yield "clusterSelector goes with no suspend, backoffLimit or SidecarMode"
    if mode == "InteractiveMode" and job.get("backoffLimit"):
        yield "backoffLimit does not go with InteractiveMode"
    if mode == "SidecarMode":
        yield from _sidecar(job)
    for field in ("activeDeadlineSeconds", "preRunningDeadlineSeconds"):
        if job.get(field, 1) <= 0:
            yield f"{field} must be positive"
    yield from _ending(job)
    yield from _readable(job.get("runtimeEnvYAML", ""))
    if cluster:
        yield from _made_by_a_job(cluster)


def _made_by_a_job(cluster: dict[str, Any]) -> Iterator[str]:
    if "upgradeStrategy" in cluster:
        yield "upgradeStrategy is for a RayCluster that a person made"
    if cluster.get("authOptions", {}).get("enableK8sTokenAuth"):
        yield "enableK8sTokenAuth is refused for a RayJob"
    yield from cluster_complaints(cluster)


def _sidecar(job: dict[str, Any]) -> Iterator[str]:
    if "submitterPodTemplate" in job or "submitterConfig" in job:
        yield "SidecarMode takes no submitterPodTemplate and no submitterConfig"
    head = (
        job.get("rayClusterSpec", {}).get("headGroupSpec", {}).get("template", {}).get("spec", {})
    )
    if head.get("restartPolicy", "Never") != "Never":
        yield "SidecarMode needs the head's restartPolicy Never"


def _ending(job: dict[str, Any]) -> Iterator[str]:
    shuts_down = job.get("shutdownAfterJobFinishes", False)
    if job.get("suspend") and not shuts_down:
        yield "suspend needs shutdownAfterJobFinishes"
    if job.get("ttlSecondsAfterFinished", 0) > 0 and not shuts_down:
        yield "ttlSecondsAfterFinished needs shutdownAfterJobFinishes"
    rules = job.get("deletionStrategy", {}).get("deletionRules", [])
    if rules and (shuts_down or job.get("ttlSecondsAfterFinished", 0) > 0):
        yield "deletionRules go with no shutdownAfterJobFinishes and no ttlSecondsAfterFinished"
    autoscales = job.get("rayClusterSpec", {}).get("enableInTreeAutoscaling")
    if autoscales and any(rule["policy"] == "DeleteWorkers" for rule in rules):
        yield "DeleteWorkers does not go with the autoscaler"
    yield from _order(rules)


def _order(rules: list[dict[str, Any]]) -> Iterator[str]:
    """Per status, each policy once, and what leaves more not after what leaves less."""
    seconds: dict[str, dict[str, int]] = {}
    for rule in rules:
        status = rule["condition"].get("jobStatus") or rule["condition"].get("jobDeploymentStatus")
        of_status = seconds.setdefault(status, {})
        if rule["policy"] in of_status:
            yield f"{rule['policy']} appears twice for {status}"
        of_status[rule["policy"]] = rule["condition"].get("ttlSeconds", 0)
    for status, of_status in seconds.items():
        times = [of_status[policy] for policy in POLICIES if policy in of_status]
        if times != sorted(times):
            yield f"for {status} the times fall from {' to '.join(POLICIES)}"


def _readable(runtime_env: str) -> Iterator[str]:
    try:
        yaml.safe_load(runtime_env)
    except yaml.YAMLError as error:
        yield f"runtimeEnvYAML is no YAML: {error}"


def cluster_complaints(cluster: dict[str, Any]) -> Iterator[str]:
    """Yields why the operator would refuse a cluster, be it a RayJob's or one by itself."""
    version = tuple(int(part) for part in re.findall(r"\d+", cluster.get("rayVersion", "0"))[:2])
    options, autoscales = (
        cluster.get("autoscalerOptions", {}),
        cluster.get("enableInTreeAutoscaling"),
    )
    second = bool(autoscales) and options.get("version") == "v2"
    if cluster.get("authOptions", {}).get("mode") == "token" and version < (2, 52):
        yield "authOptions.mode token needs rayVersion 2.52 or newer, written out"
    yield from (f"{field} needs a feature gate that is off" for field in GATED if field in cluster)
    if "gcsFaultToleranceOptions" in cluster:
        yield "gcsFaultToleranceOptions is not checked here"
    groups = cluster.get("workerGroupSpecs", ())
    yield from _group("the head", cluster["headGroupSpec"], second=second)
    for group in groups:
        name = f"group {group['groupName']}"
        yield from _group(name, group, second=second)
        least, most = group.get("minReplicas", 0), group.get("maxReplicas", 2**31 - 1)
        if least < 0 or most < least:
            yield f"{name}: minReplicas {least} is negative or above maxReplicas {most}"
        if "idleTimeoutSeconds" in group and not second:
            yield f"{name}: idleTimeoutSeconds needs autoscalerOptions.version v2"
        if group.get("priority") and not (second and version >= (2, 56)):
            yield f"{name}: priority needs autoscalerOptions.version v2 and Ray 2.56"
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    named = {variable["name"] for container in head[:1] for variable in container.get("env", ())}
    if "RAY_enable_autoscaler_v2" in named and (not autoscales or "version" in options):
        yield "RAY_enable_autoscaler_v2 goes neither without the autoscaler nor beside its version"


def _group(name: str, group: dict[str, Any], *, second: bool) -> Iterator[str]:
    pod, parameters = group["template"]["spec"], group.get("rayStartParams", {})
    if not pod.get("containers"):
        yield f"{name} has no container"
    if "labels" in parameters:
        yield f"{name}: labels never stand in rayStartParams"
    if group.get("resources"):
        both = {"num-cpus", "num-gpus", "memory", "resources"} & parameters.keys()
        yield from (f"{name}: {one} in rayStartParams beside resources" for one in sorted(both))
    if second and pod.get("restartPolicy", "Never") != "Never":
        yield f"{name}: the autoscaler's version 2 needs restartPolicy Never"
