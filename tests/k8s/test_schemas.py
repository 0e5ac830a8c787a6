"""Layers 2 and 3: every resource fits the schema of its kind, and no kind goes unchecked."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import kubernetes_validate
import pytest

from tests.k8s import crd_check, small_schemas
from tests.k8s.rendering import OVERLAYS, Resource, rendered, the

VERSIONS = ("1.30", "1.34", "1.37")  # of Kubernetes, oldest and newest that we mean


def complaints(resource: Resource) -> Iterator[str]:
    """Yields what the API server would refuse, whatever the kind."""
    if resource["kind"] in crd_check.FILES:
        yield from crd_check.complaints(resource)
    elif resource["kind"] in small_schemas.SCHEMAS:
        yield from small_schemas.complaints(resource)
    else:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(resource, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                yield f"{version}: {error}"
            except kubernetes_validate.SchemaNotFoundError:
                yield f"{version}: no schema of kind {resource['kind']}"  # nobody has checked it


@pytest.mark.cases_by_default(3)
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


def double_the_first_variable(job: Any) -> None:
    variables = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0][
        "env"
    ]
    variables.append({"name": variables[0]["name"], "value": "again"})


JOB_FAULTS: list[tuple[Fault, str]] = [
    (put("spec.shutdownAfterJobFinish", True), "'shutdownAfterJobFinish' was unexpected"),
    (put(f"{GROUP}.replicas", "1"), "'1' is not of type 'integer'"),
    (
        put("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", 0),
        "0 is not of type 'string'",
    ),
    (
        put(f"{HEAD}.resources.limits.memory", "4 GiB"),
        "'4 GiB' is not valid|'4 GiB' does not match",
    ),
    (put(f"{HEAD}.env.0.value", 1), "1 is not of type 'string'"),
    (double_the_first_variable, '"HOME".* twice'),
    (put("spec.rayClusterSpec.autoscalerOptions", {"version": "v3"}), "'v3' is not one of"),
    (put("spec.managedBy", "somebody"), "managedBy field value must be"),
    (put("spec.deletionStrategy", {"onSuccess": {"policy": "DeleteSelf"}}), "requires either BOTH"),
    (put(f"{GROUP}.template", None), "'template' is a required property"),
    (
        put(f"{HEAD}.securityContext.readOnlyRootFileSystem", True),
        "'readOnlyRootFileSystem' was unexp",
    ),
    (put("spec.preRunningDeadlineSeconds", 0), "0 is less than the minimum"),
    (put("metadata.labels.team", "a b"), "'a b' does not match"),
]


@pytest.mark.parametrize(("fault", "complaint"), JOB_FAULTS, ids=[c for _, c in JOB_FAULTS])
def test_a_fault_in_a_ray_job_is_told(fault: Fault, complaint: str) -> None:
    job = the(rendered("local"), "RayJob")
    fault(job)

    told = list(complaints(job))

    assert len(told) == 1
    assert re.search(complaint, told[0])


OTHER_FAULTS: list[tuple[str, Fault, str]] = [
    ("Deployment", put("spec.replica", 1), "replica"),
    ("Deployment", put("spec.template.spec.containers.0.ports.0.containerPort", "5000"), "5000"),
    ("StatefulSet", put("spec.serviceName", 5), "serviceName|5 is not"),
    ("NetworkPolicy", put("spec.ingres", []), "ingres"),
    ("PodMonitor", put("spec.podMetricsEndpoints.0.port", 8080), "8080 is not of type"),
    ("PrometheusRule", put("spec.groups.0.rules.0.for", "5 minutes"), "5 minutes"),
    (
        "PrometheusRule",
        put("spec.groups.0.rules.0.expression", "up"),
        "'expression' was unexpected",
    ),
    ("Namespace", put("kind", "Namspace"), "no schema of kind Namspace"),
]


@pytest.mark.parametrize(
    ("kind", "fault", "complaint"), OTHER_FAULTS, ids=[c for *_, c in OTHER_FAULTS]
)
def test_a_fault_in_another_kind_is_told(kind: str, fault: Fault, complaint: str) -> None:
    resource = next(one for one in rendered("cloud") if one["kind"] == kind)
    fault(resource)

    assert any(re.search(complaint, told) for told in complaints(resource))


def test_nulls_and_defaults_are_as_at_the_api_server() -> None:
    """A required field with a default may be left out, and a null is as good as left out."""
    job = the(rendered("local"), "RayJob")
    group = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    del group["maxReplicas"], group["minReplicas"]
    group["template"]["metadata"]["annotations"] = None

    assert not list(complaints(job))


def test_the_definitions_are_the_published_ones() -> None:
    readme = (crd_check.CRDS / "README.md").read_text()
    for name in crd_check.FILES.values():
        digest = hashlib.sha256((crd_check.CRDS / name).read_bytes()).hexdigest()
        assert f"| `{name}` | `{digest}` |" in readme
