"""Ranks on TPUs, as far as they go without one: torch_tpu is played by a stand-in."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from search_spaces.errors import ClusterError
from search_spaces.facts import NO_DEVICE, known_lacks
from search_spaces.hardware.device import BACKENDS
from tests.commands import run_command
from workers.probe.doctor import lacks, survey
from workers.worker import pick_device

ROOT = Path(__file__).parents[2]
# A process with the names that torch_tpu 0.2.0 gives torch: _loader.py, _device_module.py. Of a
# rank it keeps the variables that its launcher would have to agree on.
_STAND_IN = """
import json, os, types
import torch

asked = []
torch.utils.rename_privateuse1_backend("tpu")
torch._register_device_module("tpu", types.SimpleNamespace(
    get_device_name=lambda _: "TPU v5p",
    distributed=types.SimpleNamespace(set_tpu_launch_env=lambda **given: asked.append(given)),
))
torch.accelerator.current_accelerator = lambda: torch.device("tpu")
torch.accelerator.current_device_index = lambda: 0

from workers.probe.doctor import lacks
from workers.worker import device_name, pick_device

device = pick_device("tpu", 3)
names = ("TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_TOPOLOGY")
print(json.dumps([str(device), device_name(device), asked, [os.environ.get(n) for n in names],
                  dict(lacks("tpu"))]))
"""


def rank_of(**environment: str) -> list[Any]:
    ran = run_command(
        [sys.executable, "-c", _STAND_IN],
        folder=ROOT,
        environment={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **environment},
        seconds=300,
    )
    assert ran.returncode == 0, ran.stderr
    found: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_ranks_of_one_host_agree_where_their_tpus_meet() -> None:
    environment = {"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "LOCAL_RANK": "3"}
    device, name, asked, (addresses, topology), missing = rank_of(**environment)

    assert (device, name) == ("tpu:0", "TPU v5p")  # its own, whatever its local rank
    assert asked == [{"nproc_per_node": 4}]
    assert addresses == ",".join(f"localhost:{port}" for port in (8070, 8071, 8072, 8073))
    assert topology is None  # which torch_tpu finds out
    assert NO_DEVICE not in missing
    assert known_lacks("tpu").items() >= {"deepspeed": missing["deepspeed"]}.items()
    assert "compile" not in missing


@pytest.mark.slow
def test_ranks_of_several_hosts_take_the_slice_from_their_platform() -> None:
    environment = {"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "TPU_TOPOLOGY": "2x2x2"}
    _, _, asked, (addresses, topology), _ = rank_of(**environment)

    assert (asked, addresses, topology) == ([{"nproc_per_node": 4}], None, "2,2,2")


@pytest.mark.slow
def test_what_a_launcher_has_set_stays() -> None:
    given = {"TORCH_TPU_SLICEBUILDER_ADDRESSES": "a:1", "TORCH_TPU_TOPOLOGY": "1,1,1"}

    assert rank_of(**given)[3] == ["a:1", "1,1,1"]


def test_without_torch_tpu_a_sentence_names_the_extra() -> None:
    with pytest.raises(ClusterError, match=r"pip install 'plimsoll-tune\[tpu\]'") as caught:
        pick_device("tpu", 0)

    assert str(caught.value).startswith("cluster.device is tpu, but torch_tpu is not installed")
    assert dict(lacks("tpu"))[NO_DEVICE] in str(caught.value)


def test_without_a_tpu_a_sentence_names_the_way_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.memory.device_runtime.missing_extra", lambda _: None)

    with pytest.raises(ClusterError, match=r"run on a TPU VM, or set cluster\.device to cpu"):
        pick_device("tpu", 0)


def test_the_doctor_surveys_a_tpu_with_the_list_of_what_all_lack() -> None:
    found = {feature.name: feature.lack for feature in survey("tpu")}

    assert {name: found[name] for name in found if found[name] is None} == {}
    assert found.keys() <= known_lacks("tpu").keys()
    assert BACKENDS["tpu"] == "tpu_dist"  # that torch_tpu/_loader.py registers


SHARDED = {"data": 2, "micro_batch": 1}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "sdpa, recomputed": ({}, {"checkpoint_ratio": 1.0}),
    "selective": ({}, {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}),
    "packed, eager": ({}, {"batching": "packed", "attention": "eager"}),
    "chunked loss": ({}, {"loss": "chunked"}),
    "LoRA": ({"method": "lora"}, {}),
    "FSDP2": ({}, SHARDED | {"zero_stage": 2}),
    "FSDP2, weights too": ({}, SHARDED | {"zero_stage": 3}),
    "sequence": ({}, {"tensor": 2, "sequence_parallel": True}),
}


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    ran = run_command(
        [sys.executable, "-m", "tests.workers.fake_cuda.tpu_steps", json.dumps([*CASES.values()])],
        folder=ROOT,
        environment=os.environ | {"PYTHONPATH": str(ROOT)},
        seconds=1200,
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(CASES, json.loads(ran.stdout.splitlines()[-1]), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_workers_step_asks_a_device_of_type_tpu_for_nothing_that_torch_tpu_lacks(
    results: dict[str, dict[str, Any]], case: str
) -> None:
    """Runs on fake tensors: nothing is computed, but any mix of devices is an error."""
    result = results[case]

    assert "error" not in result, result["error"]
    assert (result["loss"], result["weights"]) == ("tpu:0", ["tpu:0"])
    assert result["optimizer_bytes"] > 0
