"""Layer 5: every name leads somewhere."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from tests.k8s.references import complaints
from tests.k8s.rendering import K8S, OVERLAYS, Resource, rendered, the
from tests.k8s.test_schemas import GROUP, HEAD, Fault, put


def secrets() -> list[Resource]:
    """The Secrets that a person makes, as the example has them."""
    text = (K8S / "secret.example.yaml").read_text(encoding="utf-8")
    return list(yaml.load_all(text, yaml.CSafeLoader))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_every_name_leads_somewhere(overlay: str) -> None:
    assert list(complaints(rendered(overlay), secrets())) == []


def test_the_example_of_secrets_is_part_of_no_kustomization() -> None:
    texts = [file.read_text() for file in K8S.rglob("kustomization.yaml")]

    assert not any("secret.example" in text for text in texts)


MLFLOW = "spec.template.spec.containers.0"
FAULTS: list[tuple[str, str, Fault, str]] = [
    (
        "local",
        "RayJob",
        put(f"{HEAD}.volumeMounts.0.name", "temp"),
        "mounts temp, which is no volume",
    ),
    ("local", "RayJob", put(f"{HEAD}.volumeMounts", []), "nobody mounts volume"),
    (
        "local",
        "RayJob",
        put(f"{HEAD}.env.1.valueFrom.secretKeyRef.key", "study"),
        "no key study in Secret plimsoll-databases",
    ),
    ("local", "RayJob", put(f"{HEAD}.env.1.valueFrom.secretKeyRef.name", "db"), "no Secret db"),
    (
        "local",
        "RayJob",
        put(f"{HEAD}.envFrom.0.configMapRef.name", "sweep-environment"),
        "no ConfigMap sweep-environment$",
    ),
    (
        "local",
        "RayJob",
        put(f"{GROUP}.template.spec.serviceAccountName", "worker"),
        "no ServiceAccount worker",
    ),
    ("local", "Deployment", put(f"{MLFLOW}.readinessProbe.httpGet.port", "web"), "asks port web"),
    (
        "local",
        "Deployment",
        put("spec.template.spec.volumes.1.persistentVolumeClaim.claimName", "runs"),
        "no PersistentVolumeClaim runs",
    ),
    (
        "local",
        "Deployment",
        put("spec.selector.matchLabels", {"app": "mlflow"}),
        "its selector does not fit its own pods",
    ),
    ("local", "Service", put("spec.ports.0.targetPort", "web"), "has no port web"),
    ("local", "Service", put("spec.selector", {"app": "mlflow"}), "it selects no pod"),
    ("local", "StatefulSet", put("spec.serviceName", "database"), "no Service database"),
    (
        "local",
        "StatefulSet",
        put("spec.volumeClaimTemplates", []),
        "mounts data, which is no volume",
    ),
    (
        "local",
        "PodDisruptionBudget",
        put("spec.selector.matchLabels", {"ray.io/node-type": "Head"}),
        "it selects no pod",
    ),
    (
        "cloud",
        "PodMonitor",
        put("spec.selector.matchLabels", {"ray.io/node-type": "Head"}),
        "it selects no pod",
    ),
    ("cloud", "PodMonitor", put("spec.podMetricsEndpoints.0.port", "m"), "has no port m"),
    ("shared", "RayJob", put("spec.clusterSelector", {"ray.io/cluster": "x"}), "no RayCluster x"),
    (
        "shared",
        "RayCluster",
        put("spec.autoscalerOptions.volumeMounts.0.name", "temp"),
        "autoscaler mounts temp",
    ),
]


@pytest.mark.parametrize(
    ("overlay", "kind", "fault", "complaint"), FAULTS, ids=[c for *_, c in FAULTS]
)
def test_a_name_that_leads_nowhere_is_told(
    overlay: str, kind: str, fault: Fault, complaint: str
) -> None:
    resources = rendered(overlay)
    resource: Any = next(one for one in resources if one["kind"] == kind)
    fault(resource)

    assert any(re.search(complaint, told) for told in complaints(resources, secrets()))


def test_the_driver_alone_can_read_where_the_study_lies() -> None:
    """Workers run whatever a model brings along."""
    for overlay in OVERLAYS:
        for resource in rendered(overlay):
            cluster = resource.get("spec", {}).get("rayClusterSpec", resource.get("spec", {}))
            for group in cluster.get("workerGroupSpecs", ()):
                assert "secret" not in str(group).lower()
    assert "secretKeyRef" in str(the(rendered("local"), "RayJob"))
