"""Our own rules for every pod: what a cluster's owner may expect of a stranger's manifests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import Pod, pods
from tests.k8s.quantities import amount
from tests.k8s.rendering import Resource

DISK = "ephemeral-storage"
LEVEL = "pod-security.kubernetes.io/enforce"
OPEN_SERVICES = ("loadbalancers", "nodeports")
_OURS = "plimsoll:"  # whose digest is known when it has been pushed: `make digests`
VOLUMES = {"name", "configMap", "emptyDir", "persistentVolumeClaim", "projected", "claimTemplate"}
SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|ACCESS_KEY|STORAGE|BACKEND_STORE")
PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def complaints(resources: list[Resource]) -> Iterator[str]:
    """Yields what breaks a rule, in any pod or ConfigMap of an overlay."""
    level = next(r for r in resources if r["kind"] == "Namespace")["metadata"]["labels"].get(LEVEL)
    if level not in ("restricted", "privileged"):
        yield f"the namespace enforces {level}"
    yield from _namespace_bounds(resources)
    for pod in pods(resources):
        told = [*_pod(pod), *_disk(pod, resources)]
        for container in pod.containers:
            added = {"IPC_LOCK"} if level == "privileged" else set()
            told += [*_security(container, pod, added), *_image(container), *_amounts(container)]
            told += [*_plain_secrets(container), *_writes(container)]
        if pod.owner in ("Deployment", "StatefulSet"):
            told += _probes(pod)
        yield from (f"{pod.name}: {complaint}" for complaint in told)
    for resource in resources:
        name = f"{resource['kind']} {resource['metadata']['name']}"
        yield from (f"{name}: {complaint}" for complaint in _quantities(resource))
        if resource["kind"] == "Secret":
            yield f"{name}: secrets are made by hand, not rendered"
        if resource["kind"] == "ConfigMap" and PASSWORD_IN_URL.search(str(resource["data"])):
            yield f"{name}: a password in an address"


def _pod(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    yield from (f"{f} is set" for f in ("hostNetwork", "hostPID", "hostIPC") if spec.get(f))
    if spec.get("automountServiceAccountToken") is not False:
        yield "the token of its service account is mounted"
    if spec.get("enableServiceLinks") is not False:
        yield "variables are made of all services"
    for volume in spec["volumes"]:
        if strange := volume.keys() - VOLUMES:
            yield f"volume {volume['name']} is a {strange.pop()}"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']} has no sizeLimit"
    memory = [v["emptyDir"] for v in spec["volumes"] if v.get("emptyDir", {}).get("medium")]
    held = sum(_size(volume.get("sizeLimit", 0)) for volume in memory)
    limit = spec["containers"][0].get("resources", {}).get("limits", {}).get("memory")
    if limit is not None and held > _size(limit) / 2:
        yield "volumes in memory may take more than half of it"


def _size(quantity: str | int) -> float:
    try:
        return amount(quantity)
    except ValueError:
        return float("inf")  # which _quantities complains of


def _quantities(value: Any) -> Iterator[str]:
    """Amounts that are none, wherever they stand: Kubernetes' schemas take any text for one."""
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in below:
        yield from _quantities(part)
    if isinstance(value, dict):
        fields = (value.get(field) for field in ("requests", "limits", "default", "defaultRequest"))
        amounts = {k: v for field in fields if isinstance(field, dict) for k, v in field.items()}
        amounts |= {k: v for k, v in value.items() if k == "sizeLimit"}
        for of, quantity in amounts.items():
            try:
                amount(quantity)
            except ValueError as error:
                yield f"{of}: {error}"


def _security(container: dict[str, Any], pod: Pod, may_add: set[str]) -> Iterator[str]:
    """Pod Security's level restricted, and a root file system that cannot be written."""
    own = container.get("securityContext") or {}
    both = {**pod.spec.get("securityContext", {}), **own}
    name = container["name"]
    if both.get("runAsNonRoot") is not True or not both.get("runAsUser"):
        yield f"{name} may run as root"
    if both.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name} has no seccomp profile"
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name} may write to its root file system"
    capabilities = own.get("capabilities", {})
    if capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", ())) - may_add:
        yield f"{name} keeps or adds capabilities"
    if any("hostPort" in port for port in container.get("ports", ())):
        yield f"{name} takes a port of its node"


def _image(container: dict[str, Any]) -> Iterator[str]:
    image = container.get("image", "")
    _, colon, tag = image.rpartition("/")[2].partition(":")
    if "@sha256:" not in image and (not colon or tag == "latest" or not re.search(r"\d", tag)):
        yield f"{container['name']}: image {image!r} is not pinned"
    elif "@sha256:" not in image and not image.startswith(_OURS):
        yield f"{container['name']}: image {image!r} has no digest"


def _amounts(container: dict[str, Any]) -> Iterator[str]:
    """Requests and limits of CPU and memory; memory that is not requested is another's."""
    resources = container.get("resources", {})
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    for of in ("cpu", "memory"):
        yield from (
            f"{container['name']} has no {of} in {side}"
            for side, given in (("requests", requests), ("limits", limits))
            if of not in given
        )
    for of in sorted(requests.keys() & limits.keys()):
        asked, most = _size(requests[of]), _size(limits[of])
        if asked > most or (of != "cpu" and asked != most):
            yield f"{container['name']}: {requests[of]} of {of} requested, {limits[of]} allowed"


def _plain_secrets(container: dict[str, Any]) -> Iterator[str]:
    for variable in container.get("env", ()):
        name, value = variable["name"], str(variable.get("value", ""))
        if value and (SECRET_NAME.search(name) or PASSWORD_IN_URL.search(value)):
            yield f"{container['name']}: {name} stands there for all to read"
    for word in [*container.get("command", ()), *container.get("args", ())]:
        secret = any(f"$({one})" in word for one in _secret_variables(container))
        if secret or PASSWORD_IN_URL.search(word):
            yield f"{container['name']}: a password in its command"


def _secret_variables(container: dict[str, Any]) -> Iterator[str]:
    for variable in container.get("env", ()):
        if "secretKeyRef" in variable.get("valueFrom", {}):
            yield variable["name"]


def _namespace_bounds(resources: list[Resource]) -> Iterator[str]:
    hard = [one["spec"]["hard"] for one in resources if one["kind"] == "ResourceQuota"]
    if not any("pods" in one for one in hard):
        yield "the namespace has no quota of pods"
    if any(one.get(f"services.{kind}") != "0" for one in hard for kind in OPEN_SERVICES):
        yield "the namespace may open services to the network"


def _disk(pod: Pod, resources: list[Resource]) -> Iterator[str]:
    """Yields pods whose volumes may take more of their node's disk than they are allowed."""
    ranges = [one["spec"]["limits"] for one in resources if one["kind"] == "LimitRange"]
    defaults = [one["default"].get(DISK) for limits in ranges for one in limits if "default" in one]
    of = [c.get("resources", {}).get("limits", {}).get(DISK) for c in pod.spec["containers"]]
    limits = [own or next(iter(defaults), None) for own in of]
    if None in limits:
        yield "its disk is not bounded"
        return
    on_disk = [v["emptyDir"] for v in pod.spec["volumes"] if "emptyDir" in v]
    held = sum(_size(v.get("sizeLimit", 0)) for v in on_disk if not v.get("medium"))
    if held > sum(map(_size, limits)):
        yield "volumes may take more than its ephemeral storage"


def _writes(container: dict[str, Any]) -> Iterator[str]:
    """Yields which of /tmp and the home directory cannot be written on a read-only root."""
    places = {m["mountPath"] for m in container.get("volumeMounts", ()) if not m.get("readOnly")}
    home = next((v.get("value") for v in container.get("env", ()) if v["name"] == "HOME"), "/tmp")
    yield from (f"{container['name']} cannot write to {place}" for place in {"/tmp", home} - places)


def _probes(pod: Pod) -> Iterator[str]:
    for container in pod.spec["containers"]:
        for probe in ("readinessProbe", "livenessProbe"):
            if probe not in container:
                yield f"{container['name']} has no {probe}"
