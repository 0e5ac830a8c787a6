"""Export as a RayJob: checked by KubeRay's rules, its entry point run by a real Ray."""

import dataclasses
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.rayjob import job_name, memory_gib
from orchestrator.export.source import ExportSource
from search_spaces.trial import Fingerprint
from tests.commands import run_command
from tests.k8s import crd_check, policies
from tests.k8s.containers import submitter_script
from tests.k8s.pods import pods
from tests.k8s.rendering import Resource, build, needs_kubectl, rendered, the, unresolved
from tests.k8s.test_network import passages
from tests.k8s.test_policies import our_version
from tests.orchestrator.export.folders import CLIP, ROOT, taken_of
from tests.rigs.ray_head import ray_head
from tests.workers.test_same_training import LOSS_TOLERANCE, SPEC, losses_with_the_longest
from tests.workers.values import a_plan

NAMESPACE: Resource = {
    "kind": "Namespace",
    "apiVersion": "v1",
    "metadata": {"name": "theirs", "labels": {policies.LEVEL: "restricted"}},
}
H100 = Fingerprint(
    device="cuda",
    device_name="NVIDIA H100 80GB HBM3",
    device_memory_bytes=80 * 2**30,
    hosts=2,
    python="3.11",
    versions=(),
)


def on_gpus(what: ExportSource) -> ExportSource:
    """Returns the source as if it had been measured on GPUs."""
    record = dataclasses.replace(what.record, fingerprint=H100)
    return dataclasses.replace(what, device="cuda", record=record)


def job_of(what: ExportSource) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(export_bundle(what, "rayjob").files["rayjob.yaml"])
    return job


ON_H100 = SPEC.cluster.model_copy(update={"accelerator": "H100"})
DEEPSPEED = {"engine": "deepspeed", "zero_stage": 2, "offload_optimizer": "cpu"}
TAKEN = {
    "cpu": taken_of(a_plan(checkpoint_ratio=0.5)),
    "gpus": on_gpus(taken_of(a_plan(data=8, micro_batch=1, accumulation=1), hosts=2)),
    "deepspeed": on_gpus(taken_of(a_plan(**DEEPSPEED))),
    "kind": taken_of(a_plan(), spec=SPEC.model_copy(update={"cluster": ON_H100})),
}


@pytest.mark.parametrize("case", TAKEN)
def test_the_api_server_takes_the_job(case: str) -> None:
    assert list(crd_check.complaints(job_of(TAKEN[case]))) == []
    assert not export_bundle(TAKEN[case], "rayjob").local


@pytest.mark.parametrize("case", TAKEN)
def test_kubeflow_takes_a_trainjob_of_the_plan(case: str) -> None:
    bundle, plan = export_bundle(TAKEN[case], "trainjob"), TAKEN[case].plan
    job = yaml.safe_load(bundle.files["trainjob.yaml"])
    nodes, ranks = (job["spec"]["trainer"][key] for key in ("numNodes", "numProcPerNode"))

    assert list(crd_check.complaints(job)) == []
    assert nodes * ranks == plan.world_size
    assert bundle.files["train.py"].count("deepspeed.initialize") == (plan.engine == "deepspeed")
    (mounts,) = yaml.safe_load(bundle.files["kustomization.yaml"])["configMapGenerator"]
    assert f"configMap:\n{' ' * 30}name: {mounts['name']}\n" in bundle.files["trainjob.yaml"]
    assert {*bundle.files} - {*mounts["files"]} == {"trainjob.yaml", "kustomization.yaml"}


@pytest.mark.parametrize("case", TAKEN)
def test_what_kustomize_makes_of_the_folder_keeps_to_the_rules_of_k8s(
    case: str, tmp_path: Path
) -> None:
    needs_kubectl()
    bundle = export_bundle(TAKEN[case], "rayjob")
    write_bundle(bundle, TAKEN[case], tmp_path / "out")
    made = build(tmp_path / "out")
    assert made.returncode == 0, made.stderr
    resources: list[Resource] = list(yaml.safe_load_all(made.stdout))

    image = f"plimsoll:{our_version()}"
    bounds = list(yaml.safe_load_all((ROOT / "k8s/base/limits.yaml").read_text()))
    assert list(policies.complaints([*resources, NAMESPACE, *bounds])) == []
    assert unresolved(resources) == set()
    assert image in made.stdout
    script = export_bundle(TAKEN[case], "ray-train").files["train.py"]
    mounted = the(resources, "ConfigMap")["data"]
    assert mounted["train.py"] == bundle.files["train.py"] == script
    beside = {"plimsoll.json", "spec.yaml", *("ds_config.json" for _ in range(case == "deepspeed"))}
    assert mounted.keys() == {"train.py"} | beside


def test_beside_sweeps_its_pods_reach_each_other() -> None:
    """The namespace has the network policies of `k8s/`."""
    there = [one for one in rendered("cloud") if one["kind"] == "NetworkPolicy"]
    ways = passages(there, pods([job_of(TAKEN["gpus"])]))

    assert {"head *", "worker *"} <= ways["worker", "Egress"] & ways["worker", "Ingress"]
    assert "worker *" in ways["head", "Ingress"] & ways["head", "Egress"]
    assert "head 8265" in ways["submitter", "Egress"]
    assert "submitter 8265" in ways["head", "Ingress"]


def test_the_cluster_is_as_large_as_the_plan() -> None:
    group = job_of(TAKEN["gpus"])["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    pod = group["template"]["spec"]

    assert {group["replicas"], group["minReplicas"], group["maxReplicas"]} == {2}
    limits = pod["containers"][0]["resources"]["limits"]
    assert (limits["nvidia.com/gpu"], limits["cpu"]) == ("4", "5")  # a core each, and one for Ray
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    kind = job_of(TAKEN["kind"])["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]
    assert kind["labels"] == {"ray.io/accelerator-type": "H100"}
    assert "nvidia.com/gpu" not in kind["template"]["spec"]["containers"][0]["resources"]["limits"]


def test_memory_is_what_was_measured_or_what_the_host_holds() -> None:
    what = TAKEN["deepspeed"]
    offloaded = memory_gib(dataclasses.replace(what, model=large(what)), 2)
    kept = on_gpus(taken_of(a_plan(engine="deepspeed", zero_stage=2)))

    # 4 GiB of weights and 8 of its half of the states, 8 for CUDA, 4 of shared memory; 2 for Ray
    assert offloaded == 2 * (4 + 8 + 8 + 4) + 2
    assert memory_gib(dataclasses.replace(kept, model=large(kept)), 2) == 2 * (4 + 8 + 4) + 2
    assert memory_gib(TAKEN["cpu"], 2) == 7  # 0.15 measured, 1 bare, 1 shared; 2 for Ray


def large(what: ExportSource) -> Any:
    return dataclasses.replace(what.model, parameters=2**30, trainable=None)


@settings(max_examples=20)
@given(study=st.text(max_size=60), number=st.integers(0, 10**6))
@example(study="Z" * 60, number=7)
def test_whatever_a_study_is_called_its_job_is_one(study: str, number: int) -> None:
    what = TAKEN["cpu"]
    record = dataclasses.replace(what.record, number=number)
    what = dataclasses.replace(what, study=study, record=record)
    job = job_of(what)

    assert job["metadata"]["name"] == job_name(what)
    # the operator takes 47 characters of a DNS-1035 label
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,45}[a-z0-9])?", job_name(what))
    assert job_name(what).endswith(f"-{number}")


def test_offload_to_nvme_has_a_folder_there() -> None:
    plan = a_plan(engine="deepspeed", zero_stage=3, offload_optimizer="nvme")
    what = taken_of(plan)
    cluster = what.spec.cluster.model_copy(update={"nvme_folder": "/scratch"})
    what = dataclasses.replace(what, spec=what.spec.model_copy(update={"cluster": cluster}))
    bundle = export_bundle(what, "rayjob")
    job = yaml.safe_load(bundle.files["rayjob.yaml"])

    assert list(crd_check.complaints(job)) == []
    pod = job["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"]
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert mounts["nvme"] == "/scratch"
    assert any("/scratch is an emptyDir" in sentence for sentence in bundle.caveats)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_entry_point_trains_as_a_job_of_a_real_ray(tmp_path: Path) -> None:
    what = taken_of(a_plan(checkpoint_ratio=0.5), grad_clip=CLIP)
    write_bundle(export_bundle(what, "rayjob"), what, tmp_path / "out")
    job = json.loads(
        json.dumps(job_of(what)["spec"])
        .replace("/etc/plimsoll", str(tmp_path / "out"))
        .replace("--steps 20", "--steps 3")
    )

    with (
        tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as home,
        ray_head(Path(home), token=True, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1") as environ,
    ):
        address = environ["RAY_API_SERVER_ADDRESS"]
        script = submitter_script(job, address=address, submission="train-abcde")
        submitter = run_command(
            ["/bin/bash", "-ce", "--", script], folder=tmp_path, environment=environ, seconds=800
        )

    assert submitter.returncode == 0, submitter.stdout + submitter.stderr
    lines = [json.loads(line) for line in submitter.stdout.splitlines() if line.startswith("{")]
    losses = [line["loss"] for line in lines]
    assert losses == pytest.approx(losses_with_the_longest(CLIP)[:3], rel=LOSS_TOLERANCE)
