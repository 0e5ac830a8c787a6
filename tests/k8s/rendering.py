"""The kustomizations of `k8s/`, rendered by kubectl; parsed once for all tests."""

import copy
import functools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
K8S = ROOT / "k8s"
OVERLAYS = tuple(sorted(folder.name for folder in (K8S / "overlays").iterdir()))
COMPONENTS = tuple(sorted(folder.name for folder in (K8S / "components").iterdir()))

Resource = dict[str, Any]
_IN_EVERY_NAMESPACE = "ConfigMap kube-root-ca.crt"
_KINDS = {  # field of an environment or a volume: kind of what it names
    **{"configMap": "ConfigMap", "configMapRef": "ConfigMap", "configMapKeyRef": "ConfigMap"},
    **{"secret": "Secret", "secretRef": "Secret", "secretKeyRef": "Secret"},
    "persistentVolumeClaim": "PersistentVolumeClaim",
}


def needs_kubectl() -> None:
    """Skips a test where a developer has no kubectl; where CI promises one, it fails."""
    if shutil.which("kubectl") is None:
        if os.environ.get("PLIMSOLL_KUBECTL") == "required":
            pytest.fail("PLIMSOLL_KUBECTL is required, but there is no kubectl")
        pytest.skip("there is no kubectl, which renders the manifests of k8s/")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `kubectl kustomize`, which asks no server."""
    words = ["kubectl", "kustomize", str(folder)]
    return subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)


@functools.cache
def _rendered(overlay: str) -> tuple[Resource, ...]:
    done = build(K8S / "overlays" / overlay)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, yaml.CSafeLoader))


def example_secrets() -> list[Resource]:
    """The Secrets that a person makes, as the example has them."""
    text = (K8S / "secret.example.yaml").read_text(encoding="utf-8")
    return list(yaml.load_all(text, yaml.CSafeLoader))


def rendered(overlay: str) -> list[Resource]:
    """Returns what `kubectl apply -k` would send, as a copy that a test may change."""
    needs_kubectl()
    return copy.deepcopy(list(_rendered(overlay)))


def the(resources: list[Resource], kind: str, name: str | None = None) -> Resource:
    """The one resource of that kind and name; a generated name's hash is left out."""
    found = [
        resource
        for resource in resources
        if resource["kind"] == kind
        and name in (None, resource["metadata"]["name"], plain_name(resource))
    ]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def unresolved(resources: list[Resource], secrets: list[Resource] | None = None) -> set[str]:
    """Returns the ConfigMaps, Secrets and claims that pods name and that are not there."""
    there = {f"{one['kind']} {one['metadata']['name']}" for one in [*resources, *(secrets or ())]}
    return {name for one in resources for name in _named(one)} - there - {_IN_EVERY_NAMESPACE}


def _named(value: Any) -> Iterator[str]:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in below:
        yield from _named(part)
    if isinstance(value, dict):
        for field, kind in _KINDS.items():
            if isinstance(reference := value.get(field), dict):
                names = (reference.get(key) for key in ("name", "secretName", "claimName"))
                yield from (f"{kind} {name}" for name in names if name)


def plain_name(resource: Resource) -> str:
    """Its name without the hash that a generator adds."""
    name: str = resource["metadata"]["name"]
    generated = resource["kind"] in ("ConfigMap", "Secret")
    return re.sub(r"-[a-z0-9]{10}$", "", name) if generated else name


def amount(quantity: str | int) -> float:
    """Returns the cores, bytes or pieces of a quantity as Kubernetes writes it."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([a-zA-Z]*)", str(quantity))
    assert match is not None
    units = {"": 1.0, "m": 1e-3, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40}
    return float(match[1]) * units[match[2]]
