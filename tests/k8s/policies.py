"""Rules for every pod: what the owner of a cluster expects of foreign manifests."""

import re
from collections.abc import Iterator
from typing import Any

from tests.k8s.pods import Pod, pods
from tests.k8s.rendering import Resource

LEVEL = "pod-security.kubernetes.io/enforce"
_OURS = "plimsoll:"  # `make digests` checks its digest, which a registry gives
_SECRET_NAME = re.compile(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|ACCESS_KEY|STORAGE|BACKEND_STORE")
_PASSWORD_IN_URL = re.compile(r"://[^/\s:@]+:[^/\s@]+@")


def complaints(resources: list[Resource]) -> Iterator[str]:
    """Yields each rule that a pod, a ConfigMap or the namespace of an overlay breaks."""
    yield from _namespace(resources)
    for pod in pods(resources):
        broken = [*_pod(pod)]
        for container in pod.containers:
            for rule in (_image, _amounts, _plain_secrets, _writable):
                broken += rule(container)
            broken += _security(container, pod)
        yield from (f"{pod.name}: {complaint}" for complaint in broken)
    for resource in resources:
        name = f"{resource['kind']} {resource['metadata']['name']}"
        if resource["kind"] == "Secret":
            yield f"{name}: secrets are made by hand, not rendered"
        if resource["kind"] == "ConfigMap" and _PASSWORD_IN_URL.search(str(resource["data"])):
            yield f"{name}: a password in an address"


def _namespace(resources: list[Resource]) -> Iterator[str]:
    namespace = next(one for one in resources if one["kind"] == "Namespace")
    if namespace["metadata"]["labels"].get(LEVEL) != "restricted":
        yield "the namespace does not enforce restricted"
    hard = [one["spec"]["hard"] for one in resources if one["kind"] == "ResourceQuota"]
    if not any("pods" in one for one in hard):
        yield "the namespace has no quota of pods"
    if not any(
        one.get("services.loadbalancers") == one.get("services.nodeports") == "0" for one in hard
    ):
        yield "the namespace may open services to the network"
    if not any(one["kind"] == "LimitRange" for one in resources):
        yield "the namespace bounds no container's disk"


def _pod(pod: Pod) -> Iterator[str]:
    spec = pod.spec
    if spec.get("automountServiceAccountToken") is not False:
        yield "the token of its service account is mounted"
    if spec.get("enableServiceLinks") is not False:
        yield "variables are made of all services"
    for volume in spec.get("volumes", ()):
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']} has no sizeLimit"


def _security(container: dict[str, Any], pod: Pod) -> Iterator[str]:
    """Yields rights that no container needs."""
    own = container.get("securityContext") or {}
    both = {**pod.spec.get("securityContext", {}), **own}
    name, capabilities = container["name"], own.get("capabilities", {})
    if both.get("runAsNonRoot") is not True or not both.get("runAsUser"):
        yield f"{name} may run as root"
    if both.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield f"{name} has no seccomp profile"
    if own.get("privileged") or own.get("allowPrivilegeEscalation") is not False:
        yield f"{name} may gain privileges"
    if own.get("readOnlyRootFilesystem") is not True:
        yield f"{name} may write to its root file system"
    if capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        yield f"{name} keeps or adds capabilities"


def _image(container: dict[str, Any]) -> Iterator[str]:
    image = container.get("image", "")
    _, colon, tag = image.rpartition("/")[2].partition(":")
    if "@sha256:" in image:
        return
    if not colon or not re.search(r"\d", tag):
        yield f"{container['name']}: image {image!r} is not pinned"
    elif not image.startswith(_OURS):
        yield f"{container['name']}: image {image!r} has no digest"


def _amounts(container: dict[str, Any]) -> Iterator[str]:
    for side in ("requests", "limits"):
        given = container.get("resources", {}).get(side, {})
        for resource in ("cpu", "memory"):
            if resource not in given:
                yield f"{container['name']} has no {resource} in {side}"


def _plain_secrets(container: dict[str, Any]) -> Iterator[str]:
    variables = container.get("env", ())
    for variable in variables:
        name, value = variable["name"], str(variable.get("value", ""))
        if value and (_SECRET_NAME.search(name) or _PASSWORD_IN_URL.search(value)):
            yield f"{container['name']}: {name} stands there for all to read"
    secret = [one["name"] for one in variables if "secretKeyRef" in one.get("valueFrom", {})]
    for word in [*container.get("command", ()), *container.get("args", ())]:
        if any(f"$({name})" in word for name in secret) or _PASSWORD_IN_URL.search(word):
            yield f"{container['name']}: a password in its command"


def _writable(container: dict[str, Any]) -> Iterator[str]:
    """Yields which of /tmp and the home directory lies on the read-only root file system."""
    places = {m["mountPath"] for m in container.get("volumeMounts", ()) if not m.get("readOnly")}
    home = next((v.get("value") for v in container.get("env", ()) if v["name"] == "HOME"), "/tmp")
    yield from (f"{container['name']} cannot write to {place}" for place in {"/tmp", home} - places)
