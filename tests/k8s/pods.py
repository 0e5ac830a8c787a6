"""The pods that rendered resources become: those written out and those that KubeRay makes."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.k8s.rendering import Resource


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the API server would see it, with what an operator adds to it."""

    name: str  # of its owner and its part in it, for messages
    owner: str  # kind of the resource it comes from
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def containers(self) -> list[dict[str, Any]]:
        """All its containers, those that run first included."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]


def pods(resources: list[Resource]) -> tuple[Pod, ...]:
    """All pods of an overlay."""
    return tuple(pod for resource in resources for pod in _pods_of(resource))


def ray_clusters(resource: Resource) -> list[dict[str, Any]]:
    """The cluster that a RayCluster is, or that a RayJob makes."""
    if resource["kind"] == "RayCluster":
        return [resource["spec"]]
    if resource["kind"] == "RayJob" and "rayClusterSpec" in resource["spec"]:
        return [resource["spec"]["rayClusterSpec"]]
    return []


def _pods_of(resource: Resource) -> Iterator[Pod]:
    kind, name, spec = resource["kind"], resource["metadata"]["name"], resource.get("spec", {})
    if kind in ("Deployment", "StatefulSet"):
        yield _pod(f"{kind} {name}", kind, spec["template"], {}, _claimed(spec))
    if kind == "RayJob" and "submitterPodTemplate" in spec:
        yield _pod(f"{kind} {name} submitter", kind, spec["submitterPodTemplate"], {})
    for cluster in ray_clusters(resource):
        yield _head(f"{kind} {name} head", kind, cluster)
        for group in cluster.get("workerGroupSpecs", ()):
            added = {"ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
            yield _pod(f"{kind} {name} {group['groupName']}", kind, group["template"], added)


def _head(name: str, kind: str, cluster: dict[str, Any]) -> Pod:
    template = copy.deepcopy(cluster["headGroupSpec"]["template"])
    if cluster.get("enableInTreeAutoscaling"):  # as the operator puts it beside Ray
        options = cluster.get("autoscalerOptions", {})
        beside = {"name": "autoscaler", "image": template["spec"]["containers"][0].get("image")}
        for field in ("resources", "env", "envFrom", "securityContext", "volumeMounts"):
            beside[field] = options.get(field, {} if field == "resources" else [])
        template["spec"]["containers"].append(beside)
    return _pod(name, kind, template, {"ray.io/node-type": "head", "ray.io/group": "headgroup"})


def _claimed(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Volumes that a StatefulSet's templates of claims become."""
    claims = spec.get("volumeClaimTemplates", ())
    return [{"name": claim["metadata"]["name"], "claimTemplate": True} for claim in claims]


def _pod(
    name: str,
    kind: str,
    template: dict[str, Any],
    added: dict[str, str],
    volumes: list[dict[str, Any]] | None = None,
) -> Pod:
    labels = {**added, **template.get("metadata", {}).get("labels", {})}
    spec = {**template["spec"], "volumes": [*template["spec"].get("volumes", []), *(volumes or [])]}
    return Pod(name=name, owner=kind, labels=labels, spec=spec)
