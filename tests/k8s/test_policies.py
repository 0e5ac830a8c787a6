"""Our own rules: hardening of every pod, and the traps of running Ray."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest

from tests.k8s import policies, ray_policies
from tests.k8s.quantities import amount
from tests.k8s.rendering import OVERLAYS, ROOT, Resource, rendered
from tests.k8s.test_schemas import GROUP, HEAD, Fault, put


def pinned(package: str) -> str:
    """The version that constraints.txt installs."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    found = re.search(rf"^{package}==(\S+)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def our_version() -> str:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    release: str = tools["setuptools_scm"]["fallback_version"]
    return release


def complaints(resources: list[Resource]) -> list[str]:
    image = f"plimsoll:{our_version()}"
    ours = ray_policies.complaints(resources, ray=pinned("ray"), image=image)
    return [*policies.complaints(resources), *ours]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_rule_is_broken(overlay: str) -> None:
    assert complaints(rendered(overlay)) == []


HEAD_POD = "spec.rayClusterSpec.headGroupSpec.template.spec"
POD = "spec.template.spec"
BIG = {"cpu": "2", "memory": "8Gi"}
ROOT_VOLUME = {"name": "tmp", "hostPath": {"path": "/tmp"}}
PLAIN = {"name": "POSTGRES_PASSWORD", "value": "x"}
IN_URL = {"name": "ADDRESS", "value": "postgresql://a:b@postgres/c"}
FAULTS: list[tuple[str, Fault, str]] = [
    ("Namespace", put("metadata.labels", {}), "the namespace enforces None"),
    ("RayJob", put(f"{HEAD_POD}.hostNetwork", True), "hostNetwork is set"),
    (
        "RayJob",
        put(f"{HEAD_POD}.automountServiceAccountToken", None),
        "token of its service account",
    ),
    ("Deployment", put(f"{POD}.enableServiceLinks", None), "variables are made of all services"),
    ("RayJob", put(f"{HEAD_POD}.volumes.0.emptyDir.sizeLimit", "20Gi"), "its ephemeral storage"),
    ("LimitRange", put("spec.limits.0.default", {}), "its disk is not bounded"),
    ("ResourceQuota", put("spec.hard.pods", None), "has no quota of pods"),
    ("ResourceQuota", put("spec.hard", {"pods": "64"}), "may open services"),
    (
        "Deployment",
        put(f"{POD}.initContainers.0.args", ["$(MLFLOW_BACKEND_STORE_URI)"]),
        "migrate: a password in its command",
    ),
    ("RayJob", put(f"{HEAD_POD}.volumes.0", ROOT_VOLUME), "volume tmp is a hostPath"),
    ("RayJob", put(f"{HEAD_POD}.volumes.0.emptyDir", {}), "volume tmp has no sizeLimit"),
    ("RayJob", put(f"{HEAD_POD}.volumes.2.emptyDir.sizeLimit", "5Gi"), "may take more than half"),
    ("StatefulSet", put(f"{POD}.securityContext.runAsUser", 0), "postgres may run as root"),
    ("StatefulSet", put(f"{POD}.securityContext.runAsNonRoot", None), "postgres may run as root"),
    ("RayJob", put(f"{HEAD_POD}.securityContext.seccompProfile", None), "no seccomp profile"),
    (
        "RayJob",
        put(f"{HEAD}.securityContext.allowPrivilegeEscalation", None),
        "may gain privileges",
    ),
    ("RayJob", put(f"{HEAD}.securityContext.privileged", True), "may gain privileges"),
    (
        "RayJob",
        put(f"{HEAD}.securityContext.readOnlyRootFilesystem", False),
        "may write to its root",
    ),
    ("RayJob", put(f"{HEAD}.securityContext.capabilities.drop", []), "keeps or adds capabilities"),
    (
        "RayJob",
        put(f"{HEAD}.securityContext.capabilities.add", ["IPC_LOCK"]),
        "keeps or adds capabilities",
    ),
    ("RayJob", put(f"{HEAD}.ports.0.hostPort", 6379), "takes a port of its node"),
    ("Deployment", put(f"{POD}.containers.0.image", "plimsoll"), "'plimsoll' is not pinned"),
    ("StatefulSet", put(f"{POD}.containers.0.image", "postgres:17.6"), "has no digest"),
    ("Deployment", put(f"{POD}.containers.0.image", "plimsoll:latest"), "latest' is not pinned"),
    ("Deployment", put(f"{POD}.initContainers.0.image", "host:5000/plimsoll"), "is not pinned"),
    ("RayJob", put(f"{HEAD}.resources.limits", {"cpu": "2"}), "no memory in limits"),
    ("RayJob", put(f"{HEAD}.resources.requests", None), "no cpu in requests|differ"),
    ("Deployment", put(f"{POD}.containers.0.resources.limits.memory", "4 GiB"), "is no quantity"),
    (
        "Deployment",
        put(f"{POD}.containers.0.resources.limits.memory", "4Gi"),
        "requested, 4Gi allowed",
    ),
    ("StatefulSet", put(f"{POD}.containers.0.env.0", PLAIN), "POSTGRES_PASSWORD stands there"),
    ("RayJob", put(f"{HEAD}.env.0", IN_URL), "ADDRESS stands there for all"),
    (
        "Deployment",
        put(f"{POD}.initContainers.0.args.0", "postgresql://a:b@postgres/c"),
        "a password in its command",
    ),
    (
        "StatefulSet",
        put("spec.volumeClaimTemplates.0.spec.resources.requests.storage", "20 GiB"),
        "'20 GiB' is no quantity",
    ),
    ("ConfigMap", put("data.x", "postgresql://a:b@postgres/c"), "a password in an address"),
    ("ConfigMap", put("kind", "Secret"), "secrets are made by hand"),
    ("RayJob", put(f"{HEAD}.volumeMounts.0", None), "cannot write to /tmp"),
    ("RayJob", put(f"{HEAD}.volumeMounts.1.readOnly", True), "cannot write to /home/plimsoll"),
    ("Deployment", put(f"{POD}.containers.0.livenessProbe", None), "has no livenessProbe"),
    ("StatefulSet", put(f"{POD}.containers.0.readinessProbe", None), "has no readinessProbe"),
    # what runs Ray
    ("RayJob", put("spec.rayClusterSpec.rayVersion", "2.59.0"), "2.59.0 is not the pinned 2.60.0"),
    ("RayJob", put(f"{HEAD}.image", "plimsoll:0.0.9"), "plimsoll:0.0.9 is not plimsoll:"),
    ("RayJob", put("spec.rayClusterSpec.authOptions.mode", "disabled"), "job port is open to all"),
    (
        "RayJob",
        put("spec.rayClusterSpec.headGroupSpec.rayStartParams.num-cpus", "2"),
        "trials may land on the head",
    ),
    ("RayJob", put("spec.rayClusterSpec.enableInTreeAutoscaling", True), "not written out as v2"),
    ("RayJob", put(f"{HEAD}.resources.requests.cpu", "1"), "head: Ray offers its limits"),
    ("RayJob", put(f"{GROUP}.template.spec.restartPolicy", "Always"), "restartPolicy is not Never"),
    ("RayJob", put(f"{HEAD}.ports.2.name", "prometheus"), "head: no port metrics"),
    ("RayJob", put(f"{HEAD_POD}.volumes.2.emptyDir.medium", ""), "/dev/shm is not in memory"),
    ("RayJob", put(f"{HEAD_POD}.volumes.2.emptyDir.sizeLimit", "600Mi"), "leaves NCCL less"),
    ("RayJob", put("spec.entrypoint", "plimsoll tune $SPEC"), "two shells read"),
    ("RayJob", put("spec.metadata.user", "it's me"), "two shells read"),
    ("RayJob", put("spec.runtimeEnvYAML", "pip: [plimsoll]"), "runtimeEnvYAML has pip"),
    ("RayJob", put("spec.runtimeEnvYAML", "{}"), "a stopped job has 3 s"),
    ("RayJob", put(f"{HEAD_POD}.terminationGracePeriodSeconds", 30), "a stopped job has 30 s"),
    ("RayJob", put("spec.preRunningDeadlineSeconds", None), "no preRunningDeadlineSeconds"),
    ("RayJob", put("spec.activeDeadlineSeconds", 600), "reach its activeDeadlineSeconds"),
    ("RayJob", put("spec.backoffLimit", 0), "no backoffLimit"),
    ("RayJob", put("spec.shutdownAfterJobFinishes", False), "the cluster stays"),
    ("RayJob", put("spec.entrypoint", "plimsoll tune spec.yaml"), "does not name /etc/plimsoll/"),
    (
        "RayJob",
        put(f"{GROUP}.maxReplicas", 0),
        "the sweep wants 2 ranks, the nodes have room for 0",
    ),
    ("PodDisruptionBudget", put("spec.maxUnavailable", 0), "maxUnavailable needs a scale"),
    (
        "PodDisruptionBudget",
        put("spec.selector.matchLabels", {"ray.io/node-type": "worker"}),
        "workers can be replaced",
    ),
]


@pytest.mark.parametrize(
    ("kind", "fault", "complaint"), FAULTS, ids=[f"{k}: {c}" for k, _, c in FAULTS]
)
def test_a_broken_rule_is_told(kind: str, fault: Fault, complaint: str) -> None:
    resources = rendered("local")
    resource: Any = [one for one in resources if one["kind"] == kind][-1]
    fault(resource)

    assert any(re.search(complaint, told) for told in _told(resources))


def _told(resources: list[Resource]) -> list[str]:
    try:
        return complaints(resources)
    except KeyError:  # a fault that the schemas tell first leaves the second part nothing to read
        return list(policies.complaints(resources))


@pytest.mark.parametrize(
    ("quantity", "meant"), [("500m", 0.5), ("2", 2), (8, 8), ("1Gi", 2**30), ("1.5G", 1.5e9)]
)
def test_quantities_are_read(quantity: str | int, meant: float) -> None:
    assert amount(quantity) == meant


def test_the_metrics_of_alerts_exist_in_ray() -> None:
    import ray

    agent = ROOT.joinpath(ray.__file__).parent / "dashboard/modules/reporter/reporter_agent.py"
    known = set(re.findall(r'"(\w+)": Gauge\(', agent.read_text(encoding="utf-8")))
    rules = next(one for one in rendered("cloud") if one["kind"] == "PrometheusRule")
    used = {
        name
        for group in rules["spec"]["groups"]
        for rule in group["rules"]
        for name in re.findall(r"\bray_(\w+)", rule["expr"])
        if not name.startswith("plimsoll_")
    }

    assert used
    assert used <= known
