"""Every resource fits the schema of its kind, as an API server would check it."""

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes_validate
import pytest

from tests.k8s import crd_check
from tests.k8s.rendering import OVERLAYS, Resource, rendered, the

VERSIONS = ("1.30", "1.37")  # of Kubernetes, oldest and newest
PROMETHEUS = ("PodMonitor", "PrometheusRule")  # their definitions are not kept here


def complaints(resource: Resource) -> Iterator[str]:
    """Yields what the API server would refuse, whatever the kind."""
    if resource["kind"] in crd_check.FILES:
        yield from crd_check.complaints(resource)
    elif resource["kind"] not in PROMETHEUS:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(resource, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{version}: {error}"


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_resource_fits_its_schema(overlay: str) -> None:
    resources = rendered(overlay)

    assert {r["kind"]: found for r in resources if (found := [*complaints(r)])} == {}


Fault = Callable[[Any], object]
HEAD = "spec.rayClusterSpec.headGroupSpec.template.spec.containers.0"
GROUP = "spec.rayClusterSpec.workerGroupSpecs.0"


def put(path: str, value: object) -> Fault:
    """A fault: a value at a path; None takes away what is there."""

    def change(resource: Any) -> None:
        *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
        for step in way:
            resource = resource[step]
        if value is None:
            del resource[last]
        else:
            resource[last] = value

    return change


AGAIN = [{"name": "HOME", "value": "/tmp"}, {"name": "HOME", "value": "/root"}]
FAULTS: list[tuple[Fault, str]] = [
    (put("spec.shutdownAfterJobFinish", True), "'shutdownAfterJobFinish' was unexpected"),
    (put(f"{GROUP}.replicas", "1"), "'1' is not of type 'integer'"),
    (put(f"{HEAD}.resources.limits.memory", "4 GiB"), "'4 GiB' (is not valid|does not match)"),
    (put(f"{HEAD}.env", AGAIN), '"HOME".* twice'),
    (put("spec.rayClusterSpec.autoscalerOptions", {"version": "v3"}), "'v3' is not one of"),
    (put(f"{GROUP}.template", None), "'template' is a required property"),
    (put("metadata.labels.team", "a b"), "'a b' does not match"),
]


@pytest.mark.parametrize(("fault", "complaint"), FAULTS, ids=[c for _, c in FAULTS])
def test_a_fault_in_a_ray_job_is_reported(fault: Fault, complaint: str) -> None:
    job = the(rendered("local"), "RayJob")
    fault(job)

    (reported,) = complaints(job)

    assert re.search(complaint, reported)


def test_a_required_field_with_a_default_may_be_left_out() -> None:
    job = the(rendered("local"), "RayJob")
    group = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    del group["maxReplicas"], group["minReplicas"]

    assert not list(complaints(job))


def test_the_definitions_are_the_published_ones() -> None:
    readme = (crd_check.CRDS / "README.md").read_text()
    for name in crd_check.FILES.values():
        digest = hashlib.sha256((crd_check.CRDS / name).read_bytes()).hexdigest()
        assert f"| `{name}` | `{digest}` |" in readme
