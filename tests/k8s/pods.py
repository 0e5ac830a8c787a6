"""The pods that rendered resources become: those written out and those that KubeRay makes."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.k8s.rendering import Resource

COMPONENT = "app.kubernetes.io/component"


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


def ray_clusters(resources: list[Resource]) -> list[dict[str, Any]]:
    """Specifications of the RayClusters, and of those that RayJobs make."""
    specs = [one["spec"] for one in resources if one["kind"] == "RayCluster"]
    jobs = [one["spec"] for one in resources if one["kind"] == "RayJob"]
    return specs + [job["rayClusterSpec"] for job in jobs if "rayClusterSpec" in job]


def _pods_of(resource: Resource) -> Iterator[Pod]:
    kind, spec = resource["kind"], resource.get("spec", {})
    if kind in ("Deployment", "StatefulSet"):
        yield _pod(resource, "", spec["template"], {})
    if kind == "RayJob":
        yield _pod(resource, "submitter", spec["submitterPodTemplate"], {})
    for cluster in ray_clusters([resource]):
        yield _pod(resource, "head", _head(cluster), {"ray.io/node-type": "head"})
        for group in cluster["workerGroupSpecs"]:
            added = {"ray.io/node-type": "worker", "ray.io/group": group["groupName"]}
            yield _pod(resource, group["groupName"], group["template"], added)


def _head(cluster: dict[str, Any]) -> dict[str, Any]:
    """The head's template, with the autoscaler as the operator puts it beside Ray."""
    template: dict[str, Any] = copy.deepcopy(cluster["headGroupSpec"]["template"])
    containers = template["spec"]["containers"]
    if cluster.get("enableInTreeAutoscaling"):
        added = {"name": "autoscaler", "image": containers[0]["image"]}
        containers.append({**cluster["autoscalerOptions"], **added})
    return template


def _pod(resource: Resource, part: str, template: dict[str, Any], added: dict[str, str]) -> Pod:
    return Pod(
        name=f"{resource['kind']} {resource['metadata']['name']} {part}".strip(),
        owner=resource["kind"],
        labels={**added, **template["metadata"]["labels"]},
        spec=template["spec"],
    )
