"""Rules for pods, and the traps of running Ray that neither schema nor operator sees."""

import re
import tomllib
from typing import Any

import pytest
import yaml

from search_spaces.specification.schema import SweepSpec
from tests.k8s.pods import pods, ray_clusters
from tests.k8s.policies import complaints
from tests.k8s.rendering import OVERLAYS, ROOT, amount, plain_name, rendered, the
from tests.k8s.test_schemas import HEAD, Fault, put

TWICE_READ = set("$`\"'\\!;&|<>*?~#")  # characters that either of two shells would take for its own


def pinned(package: str) -> str:
    """The version that constraints.txt installs."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    match = re.search(rf"^{package}==(\S+)$", text, re.MULTILINE)
    assert match is not None
    return match[1]


def our_version() -> str:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    release: str = tools["setuptools_scm"]["fallback_version"]
    return release


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_rule_is_broken(overlay: str) -> None:
    assert list(complaints(rendered(overlay))) == []


HEAD_POD = "spec.rayClusterSpec.headGroupSpec.template.spec"
POD = "spec.template.spec"
SECURITY = f"{HEAD}.securityContext"
PLAIN = {"name": "POSTGRES_PASSWORD", "value": "x"}
IN_URL = "postgresql://a:b@postgres/c"
SECRET_WORD = ["$(MLFLOW_BACKEND_STORE_URI)"]
FAULTS: list[tuple[str, Fault, str]] = [
    ("Namespace", put("metadata.labels", {}), "does not enforce restricted"),
    ("ResourceQuota", put("spec.hard", {"services.nodeports": "0"}), "no quota.*\n.*open services"),
    ("RayJob", put(f"{HEAD_POD}.automountServiceAccountToken", None), "token of its service"),
    ("RayJob", put(f"{HEAD_POD}.volumes.0.emptyDir", {}), "volume tmp has no sizeLimit"),
    ("StatefulSet", put(f"{POD}.securityContext.runAsUser", 0), "postgres may run as root"),
    ("RayJob", put(f"{HEAD_POD}.securityContext.seccompProfile", None), "no seccomp profile"),
    ("RayJob", put(f"{SECURITY}.allowPrivilegeEscalation", None), "may gain privileges"),
    ("RayJob", put(f"{SECURITY}.readOnlyRootFilesystem", False), "may write to its root"),
    ("RayJob", put(f"{SECURITY}.capabilities.add", ["IPC_LOCK"]), "keeps or adds capabilities"),
    ("Deployment", put(f"{POD}.containers.0.image", "plimsoll:latest"), "latest' is not pinned"),
    ("Deployment", put(f"{POD}.initContainers.0.image", "host:5000/plimsoll"), "is not pinned"),
    ("StatefulSet", put(f"{POD}.containers.0.image", "postgres:17.6"), "has no digest"),
    ("RayJob", put(f"{HEAD}.resources.limits", {"cpu": "2"}), "no memory in limits"),
    ("StatefulSet", put(f"{POD}.containers.0.env.0", PLAIN), "POSTGRES_PASSWORD stands there"),
    ("Deployment", put(f"{POD}.initContainers.0.args", SECRET_WORD), "a password in its command"),
    ("Deployment", put(f"{POD}.initContainers.0.args.0", IN_URL), "a password in its command"),
    ("ConfigMap", put("data.x", IN_URL), "a password in an address"),
    ("ConfigMap", put("kind", "Secret"), "secrets are made by hand"),
    ("RayJob", put(f"{HEAD}.volumeMounts.0", None), "cannot write to /tmp"),
]


@pytest.mark.parametrize(
    ("kind", "fault", "complaint"), FAULTS, ids=[f"{k}: {c}" for k, _, c in FAULTS]
)
def test_a_broken_rule_is_reported(kind: str, fault: Fault, complaint: str) -> None:
    resources = rendered("local")
    resource: Any = [one for one in resources if one["kind"] == kind][-1]
    fault(resource)

    assert re.search(complaint, "\n".join(complaints(resources)))


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_ray_gets_the_nodes_that_its_pods_are(overlay: str) -> None:
    resources = rendered(overlay)
    (cluster,) = ray_clusters(resources)
    head = cluster["headGroupSpec"]

    assert cluster["rayVersion"] == pinned("ray")
    assert cluster["authOptions"]["mode"] == "token"  # the job port runs any code
    assert "secretKeyRef" in str(head)  # the driver alone knows where the study lies:
    assert "secret" not in str(cluster["workerGroupSpecs"]).lower()  # workers run any model's code
    assert head["rayStartParams"]["num-cpus"] == "0"  # no trial beside the driver
    for group in [head, *cluster["workerGroupSpecs"]]:
        pod = group["template"]["spec"]
        container = pod["containers"][0]
        # Ray offers its limits, Kubernetes promises its requests
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert pod["restartPolicy"] == "Never"  # a restarted Ray node is another one
        assert {"name": "metrics", "containerPort": 8080} in container["ports"]
        mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        (shared,) = [one for one in pod["volumes"] if one["name"] == mounts["/dev/shm"]]
        assert shared["emptyDir"]["medium"] == "Memory"
        stored = int(group["rayStartParams"]["object-store-memory"])
        assert stored <= amount(shared["emptyDir"]["sizeLimit"]) / 2  # NCCL has the other half
    images = {c["image"] for p in pods(resources) if "Ray" in p.owner for c in p.containers}
    assert images == {f"plimsoll:{our_version()}"}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_sweep_fits_its_nodes_and_ends_before_its_deadline(overlay: str) -> None:
    resources = rendered(overlay)
    job = the(resources, "RayJob")["spec"]
    (cluster,) = ray_clusters(resources)
    config = next(one for one in resources if plain_name(one) == "sweep-spec")
    spec = SweepSpec.model_validate(yaml.safe_load(config["data"]["sweep.yaml"]))
    ranks = 0.0
    for group in cluster["workerGroupSpecs"]:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        slots = amount(limits["cpu"]) // spec.cluster.cpus_per_worker
        gpus = amount(limits.get("nvidia.com/gpu", 0))
        ranks += group["maxReplicas"] * (
            min(slots, gpus) if spec.cluster.device == "cuda" else slots
        )

    assert isinstance(spec.cluster.workers, int)
    assert spec.cluster.workers <= ranks
    assert spec.budget.minutes is not None
    assert spec.budget.minutes * 60 < job["activeDeadlineSeconds"]
    assert "preRunningDeadlineSeconds" in job
    if "rayClusterSpec" in job:
        assert job["backoffLimit"] > 0  # a lost head costs a retry, not the sweep
        assert job["shutdownAfterJobFinishes"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_two_shells_read_the_job_as_it_is_written(overlay: str) -> None:
    job = the(rendered(overlay), "RayJob")["spec"]
    runtime = yaml.safe_load(job["runtimeEnvYAML"])
    words = [job["entrypoint"], *job["metadata"].values(), *runtime["env_vars"].values()]

    assert "/etc/plimsoll/sweep.yaml" in job["entrypoint"].split()
    assert not TWICE_READ & set("".join(words))
    assert runtime.keys() == {"env_vars"}  # pip would hang where nodes have no way out
    # longer than Ray's 3 s, and shorter than the head's grace period
    assert 3 < float(runtime["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) < 60
