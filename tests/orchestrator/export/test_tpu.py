"""Exports of plans for TPUs, read by the parsers of Ray and of Kubernetes."""

import ast
import dataclasses
from typing import Any

import pytest
import ray.train
import yaml
from ray._private.accelerators.tpu import (
    VALID_TPU_TOPOLOGY,
    TPUAcceleratorManager,
    get_num_chips_from_topology,
)

from orchestrator.export.formats import FORMATS, choose_format, export_bundle
from orchestrator.export.source import ExportSource, slice_of
from search_spaces.errors import UserError
from search_spaces.safety.files import packaged_table
from search_spaces.settings.trainer_refusals import TPU_FORMATS
from search_spaces.trial import Fingerprint
from tests.k8s import crd_check
from tests.orchestrator.export.folders import taken_of
from tests.workers.values import a_plan

SLICES: dict[str, Any] = packaged_table("search_spaces", "devices/slices.yaml")
HOST = {"TPU v5e": 8, "TPU v6e": 8}  # chips of a slice on one host; of others 4


def measured_on(name: str, ranks: int, hosts: int, **knobs: Any) -> ExportSource:
    """Returns a plan as if it had been measured on TPUs."""
    plan = a_plan(**{"data": ranks, "micro_batch": 1, "accumulation": 1, **knobs})
    fingerprint = Fingerprint(
        device="tpu",
        device_name=name,
        device_memory_bytes=95 * 2**30,
        hosts=hosts,
        python="3.11",
        versions=(),
    )
    source = taken_of(plan, hosts=hosts)
    record = dataclasses.replace(source.record, fingerprint=fingerprint)
    return dataclasses.replace(source, device="tpu", record=record)


@pytest.mark.parametrize("name", SLICES)
def test_ray_knows_each_slice_and_counts_as_many_devices(name: str) -> None:
    known = SLICES[name]
    generation = known["ray"].removeprefix("TPU-").lower()

    for ranks, topology in known["topologies"].items():
        valid = topology in VALID_TPU_TOPOLOGY[generation] or ranks > 256
        assert valid, topology
        assert get_num_chips_from_topology(topology) * known["devices_per_chip"] == ranks
    per_chip = {"RAY_TPU_RESOURCE_PER_CHIP": str(known["devices_per_chip"])}
    assert known["environment"] == ({} if known["devices_per_chip"] == 1 else per_chip)
    assert TPUAcceleratorManager.is_valid_tpu_accelerator_topology(generation, "4x4x4") == (
        "4x4x4" in known["topologies"].values()
    )


def scaling_of(script: str) -> dict[str, Any]:
    """Returns the arguments of the script's ScalingConfig."""
    (call,) = (
        node
        for node in ast.walk(ast.parse(script))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "ray.train.ScalingConfig"
    )
    return {
        str(argument.arg): ast.literal_eval(argument.value)
        for argument in call.keywords
        if argument.arg != "num_workers"
    }


@pytest.mark.parametrize(
    ("name", "ranks", "hosts"),
    [("TPU v5p", 8, 2), ("TPU v4", 4, 1), ("TPU v5e", 8, 1), ("TPU v6e", 16, 4), ("TPU v7", 8, 1)],
)
def test_ray_train_takes_the_slice(
    name: str, ranks: int, hosts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = measured_on(name, ranks, hosts)
    script = export_bundle(source, "ray-train").files["train.py"]
    arguments = scaling_of(script)
    for variable, value in SLICES[name]["environment"].items():
        monkeypatch.setenv(variable, value)

    config = ray.train.ScalingConfig(num_workers=ranks, **arguments)
    assert (config.use_tpu, config.num_tpus_per_worker) == (True, 1)
    assert config.accelerator_type == SLICES[name]["ray"]
    assert 'TorchConfig("tpu_dist")' in script


@pytest.mark.parametrize(("name", "ranks", "hosts", "chips"), [
    ("TPU v5p", 8, 2, "4"), ("TPU v7", 16, 2, "4"), ("TPU v5e", 8, 1, "8"),
])  # fmt: skip
def test_gke_takes_the_job(name: str, ranks: int, hosts: int, chips: str) -> None:
    job = yaml.safe_load(
        export_bundle(measured_on(name, ranks, hosts), "rayjob").files["rayjob.yaml"]
    )
    (group,) = job["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    pod = group["template"]["spec"]
    (container,) = pod["containers"]

    assert list(crd_check.complaints(job)) == []
    assert (group["replicas"], group["numOfHosts"]) == (1, hosts)  # KubeRay: a slice at a time
    assert container["resources"]["limits"]["google.com/tpu"] == chips
    assert "nvidia.com/gpu" not in container["resources"]["limits"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": SLICES[name]["gke"],
        "cloud.google.com/gke-tpu-topology": SLICES[name]["topologies"][ranks],
    }
    assert [each["key"] for each in pod["tolerations"]] == ["google.com/tpu"]
    counted = {each["name"]: each["value"] for each in container["env"]}
    assert SLICES[name]["environment"].items() <= counted.items()


def test_torchruns_script_takes_the_tpu_that_a_rank_has() -> None:
    bundle = export_bundle(measured_on("TPU v5p", 4, 1, zero_stage=3), "torchrun")
    script = bundle.files["train.py"]

    compile(script, "train.py", "exec")
    assert 'DEVICE = "tpu"' in script
    assert 'dist.init_process_group("tpu_dist")' in script
    assert script.index("device = meet_tpus()") < script.index("init_process_group")
    assert "def meet_tpus" in script
    assert bundle.environment == ()


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {*TPU_FORMATS}))
def test_others_refuse_with_the_way_on(name: str) -> None:
    source = measured_on("TPU v5p", 4, 1)
    reason = "engine is torch" if name == "deepspeed" else "only torchrun, ray-train, rayjob train"

    with pytest.raises(UserError, match=reason) as caught:
        choose_format(name, source)
    assert str(caught.value).endswith("torchrun, ray-train, rayjob can")


def test_a_slice_that_is_not_rented_is_refused() -> None:
    with pytest.raises(UserError, match="there is no slice of 2 TPU v5p: export a plan for 4, 8"):
        slice_of(measured_on("TPU v5p", 2, 1))
