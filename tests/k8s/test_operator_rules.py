"""Layer 4: what KubeRay's operator would refuse after the API server has taken it."""

from __future__ import annotations

import re

import pytest

from tests.k8s.operator_rules import complaints
from tests.k8s.rendering import OVERLAYS, rendered, the
from tests.k8s.test_schemas import GROUP, Fault, put

HEAD_POD = "spec.rayClusterSpec.headGroupSpec.template.spec"
DELETES = {"condition": {"jobStatus": "SUCCEEDED", "ttlSeconds": 60}, "policy": "DeleteWorkers"}
DELETES_SOONER = {"condition": {"jobStatus": "SUCCEEDED"}, "policy": "DeleteCluster"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_operator_takes_it(overlay: str) -> None:
    ray = [one for one in rendered(overlay) if one["apiVersion"] == "ray.io/v1"]

    assert ray
    assert {one["kind"]: found for one in ray if (found := [*complaints(one)])} == {}


FAULTS: list[tuple[str, Fault, str]] = [
    ("local", put("metadata.name", "a" * 48), "48 characters, RayJob takes 47"),
    ("local", put("metadata.name", "1-sweep"), "no DNS-1035 label"),
    ("local", put("spec.submissionMode", "SideCar"), "submissionMode SideCar is none of"),
    (
        "local",
        put("spec.submissionMode", "SidecarMode"),
        "SidecarMode takes no submitterPodTemplate",
    ),
    ("local", put("spec.submissionMode", "InteractiveMode"), "backoffLimit does not go with Inter"),
    ("local", put("spec.clusterSelector", {"ray.io/cluster": "shared"}), "exactly one of"),
    ("shared", put("spec.clusterSelector", {}), "exactly one of"),
    ("shared", put("spec.backoffLimit", 2), "clusterSelector goes with no suspend, backoff"),
    ("shared", put("spec.suspend", True), "clusterSelector goes with no suspend, backoff"),
    ("cloud-kueue", put("spec.shutdownAfterJobFinishes", False), "suspend needs shutdownAfter"),
    ("local", put("spec.shutdownAfterJobFinishes", None), "ttlSecondsAfterFinished needs"),
    (
        "local",
        put("spec.deletionStrategy", {"deletionRules": [DELETES]}),
        "deletionRules go with no",
    ),
    ("local", put("spec.deletionStrategy", {"deletionRules": [DELETES, DELETES]}), "appears twice"),
    (
        "local",
        put("spec.deletionStrategy", {"deletionRules": [DELETES, DELETES_SOONER]}),
        "the times fall",
    ),
    (
        "cloud-mixed",
        put("spec.deletionStrategy", {"deletionRules": [DELETES]}),
        "DeleteWorkers does not go with the autoscaler",
    ),
    ("local", put("spec.activeDeadlineSeconds", 0), "activeDeadlineSeconds must be positive"),
    ("local", put("spec.runtimeEnvYAML", "env_vars: {"), "runtimeEnvYAML is no YAML"),
    ("local", put(f"{GROUP}.minReplicas", 2), "minReplicas 2 is negative or above maxReplicas 1"),
    ("local", put(f"{GROUP}.idleTimeoutSeconds", 60), "idleTimeoutSeconds needs"),
    ("local", put(f"{GROUP}.priority", 1), "priority needs"),
    ("cloud-mixed", put("spec.rayClusterSpec.rayVersion", "2.55.0"), "priority needs"),
    (
        "local",
        put("spec.rayClusterSpec.headGroupSpec.resources", {"CPU": "2"}),
        "num-cpus in raySt",
    ),
    ("local", put(f"{GROUP}.rayStartParams.labels", "gpu=h100"), "labels never stand in raySt"),
    ("cloud-mixed", put(f"{HEAD_POD}.restartPolicy", "Always"), "needs restartPolicy Never"),
    ("local", put("spec.rayClusterSpec.rayVersion", None), "token needs rayVersion 2.52"),
    (
        "local",
        put("spec.rayClusterSpec.authOptions.enableK8sTokenAuth", True),
        "refused for a RayJob",
    ),
    ("local", put("spec.rayClusterSpec.networkPolicy", {}), "networkPolicy needs a feature gate"),
    (
        "local",
        put("spec.rayClusterSpec.upgradeStrategy", {}),
        "upgradeStrategy is for a RayCluster",
    ),
    ("local", put(f"{HEAD_POD}.containers", []), "the head has no container"),
    (
        "cloud-mixed",
        put(f"{HEAD_POD}.containers.0.env.0.name", "RAY_enable_autoscaler_v2"),
        "RAY_enable_autoscaler_v2 goes neither",
    ),
]


@pytest.mark.parametrize(("overlay", "fault", "complaint"), FAULTS, ids=[c for *_, c in FAULTS])
def test_what_the_operator_refuses_is_told(overlay: str, fault: Fault, complaint: str) -> None:
    job = the(rendered(overlay), "RayJob")
    fault(job)

    assert any(re.search(complaint, told) for told in complaints(job))
