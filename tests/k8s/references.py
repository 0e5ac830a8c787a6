"""Names that one resource calls another by: each has to lead somewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import Pod, pods
from tests.k8s.rendering import Resource

IN_EVERY_NAMESPACE = ("kube-root-ca.crt",)  # ConfigMaps that Kubernetes puts there


def complaints(resources: list[Resource], secrets: list[Resource]) -> Iterator[str]:
    """Yields what is named and is not there; `secrets` are those that a person makes."""
    there = _Names(resources, secrets)
    for pod in pods(resources):
        yield from (f"{pod.name}: {complaint}" for complaint in _pod(pod, there))
    for resource in resources:
        name = f"{resource['kind']} {resource['metadata']['name']}"
        yield from (f"{name}: {complaint}" for complaint in _resource(resource, resources))


class _Names:
    """Resources that can be referred to, by kind, with their keys if they have some."""

    def __init__(self, resources: list[Resource], secrets: list[Resource]) -> None:
        self.keys: dict[tuple[str, str], set[str]] = {}
        for resource in [*resources, *secrets]:
            data = {**resource.get("data", {}), **resource.get("stringData", {})}
            self.keys[resource["kind"], resource["metadata"]["name"]] = set(data)

    def lacks(self, kind: str, name: str, key: str | None = None) -> Iterator[str]:
        """A complaint if there is no such resource, or no such key in it."""
        if name in IN_EVERY_NAMESPACE:
            return
        keys = self.keys.get((kind, name))
        if keys is None:
            yield f"no {kind} {name}"
        elif key is not None and key not in keys:
            yield f"no key {key} in {kind} {name}"


def _pod(pod: Pod, there: _Names) -> Iterator[str]:
    if account := pod.spec.get("serviceAccountName"):
        yield from there.lacks("ServiceAccount", account)
    volumes = {volume["name"] for volume in pod.spec["volumes"]}
    for container in pod.containers:
        for mount in container.get("volumeMounts", ()):
            if mount["name"] not in volumes:
                yield f"{container['name']} mounts {mount['name']}, which is no volume"
        yield from _environment(container, there)
    mounted = {mount["name"] for c in pod.containers for mount in c.get("volumeMounts", ())}
    yield from (f"nobody mounts volume {name}" for name in sorted(volumes - mounted))
    for volume in pod.spec["volumes"]:
        for source in [volume, *volume.get("projected", {}).get("sources", ())]:
            yield from _source(source, there)
    yield from _probes(pod)


def _environment(container: dict[str, Any], there: _Names) -> Iterator[str]:
    for source in container.get("envFrom", ()):
        for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if field in source:
                yield from there.lacks(kind, source[field]["name"])
    for variable in container.get("env", ()):
        value = variable.get("valueFrom", {})
        for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if field in value:
                yield from there.lacks(kind, value[field]["name"], value[field]["key"])


def _source(source: dict[str, Any], there: _Names) -> Iterator[str]:
    for field, kind, name in (
        ("configMap", "ConfigMap", "name"),
        ("secret", "Secret", "secretName"),
        ("persistentVolumeClaim", "PersistentVolumeClaim", "claimName"),
    ):
        if field in source:
            called = source[field].get(name) or source[field]["name"]
            yield from there.lacks(kind, called)
            for item in source[field].get("items", ()):
                yield from there.lacks(kind, called, item["key"])


def _probes(pod: Pod) -> Iterator[str]:
    for container in pod.spec["containers"]:
        ports = {port["name"] for port in container.get("ports", ())}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = container.get(kind, {}).get("httpGet", {}).get("port")
            if isinstance(port, str) and port not in ports:
                yield f"{kind} of {container['name']} asks port {port}, which it does not name"


def _resource(resource: Resource, resources: list[Resource]) -> Iterator[str]:
    kind, spec = resource["kind"], resource.get("spec", {})
    if kind in ("Deployment", "StatefulSet"):
        yield from _owner(spec)
    if kind == "StatefulSet":
        yield from _absent("Service", spec["serviceName"], resources)
    if kind == "RayJob" and "clusterSelector" in spec:
        yield from _absent("RayCluster", spec["clusterSelector"]["ray.io/cluster"], resources)
    if kind == "Service":
        ports = [port.get("targetPort", port["port"]) for port in spec["ports"]]
        yield from _selection(spec["selector"], ports, resources)
    if kind in ("PodDisruptionBudget", "PodMonitor"):
        ports = [endpoint["port"] for endpoint in spec.get("podMetricsEndpoints", ())]
        yield from _selection(spec["selector"]["matchLabels"], ports, resources)


def _owner(spec: dict[str, Any]) -> Iterator[str]:
    if (
        not spec["selector"]["matchLabels"].items()
        <= spec["template"]["metadata"]["labels"].items()
    ):
        yield "its selector does not fit its own pods"


def _absent(kind: str, name: str, resources: list[Resource]) -> Iterator[str]:
    if name not in [one["metadata"]["name"] for one in resources if one["kind"] == kind]:
        yield f"no {kind} {name}"


def _selection(
    labels: dict[str, str], ports: list[str | int], resources: list[Resource]
) -> Iterator[str]:
    """Yields what is wrong with the pods that labels choose, and with their ports."""
    chosen = [pod for pod in pods(resources) if labels.items() <= pod.labels.items()]
    if not chosen:
        yield "it selects no pod"
    for port in ports:
        yield from _unserved(port, chosen)


def _unserved(port: str | int, chosen: list[Pod]) -> Iterator[str]:
    for pod in chosen:
        ports = [port for c in pod.spec["containers"] for port in c.get("ports", ())]
        if port not in {one[key] for one in ports for key in ("name", "containerPort")}:
            yield f"{pod.name} has no port {port}"
