"""The kustomizations of `k8s/`, rendered by kubectl; parsed once for all tests."""

from __future__ import annotations

import copy
import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
K8S = ROOT / "k8s"
OVERLAYS = tuple(sorted(folder.name for folder in (K8S / "overlays").iterdir()))
COMPONENTS = tuple(sorted(folder.name for folder in (K8S / "components").iterdir()))
LEAST_MINOR = 27  # kubectl 1.27: older ones have a kustomize with other defaults

Resource = dict[str, Any]


@functools.cache
def _lack() -> str | None:
    """Returns why kubectl cannot be used here; None if it can."""
    if shutil.which("kubectl") is None:
        return "there is no kubectl"
    told = subprocess.run(
        ["kubectl", "version", "--client", "--output=json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if told.returncode != 0:
        return f"kubectl does not run: {told.stderr.strip()}"
    minor = int(re.sub(r"\D", "", json.loads(told.stdout)["clientVersion"]["minor"]))
    return f"kubectl is 1.{minor}, too old" if minor < LEAST_MINOR else None


def needs_kubectl() -> None:
    """Skips a test where a developer has no kubectl; where CI promises one, it fails."""
    if lack := _lack():
        if os.environ.get("PLIMSOLL_KUBECTL") == "required":
            pytest.fail(f"PLIMSOLL_KUBECTL is required, but {lack}")
        pytest.skip(f"{lack}: the manifests of k8s/ are rendered with kubectl 1.{LEAST_MINOR}+")


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs `kubectl kustomize`, which asks no server."""
    return subprocess.run(
        ["kubectl", "kustomize", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@functools.cache
def _rendered(overlay: str) -> tuple[Resource, ...]:
    done = build(K8S / "overlays" / overlay)
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, yaml.CSafeLoader))


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


def plain_name(resource: Resource) -> str:
    """Its name without the hash that a generator adds."""
    name: str = resource["metadata"]["name"]
    generated = resource["kind"] in ("ConfigMap", "Secret")
    return re.sub(r"-[a-z0-9]{10}$", "", name) if generated else name
