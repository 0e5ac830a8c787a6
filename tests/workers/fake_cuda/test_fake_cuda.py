"""The training step on fake CUDA tensors: any mix of devices is an error there, as on a GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[3]
SHARDED = {"data": 2, "micro_batch": 1}
OFFLOADED = SHARDED | {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bf16": ({}, {}),
    "fp32": ({"precision": "fp32"}, {}),
    "fp16": ({"precision": "fp16"}, {}),
    "eager": ({}, {"attention": "eager"}),
    "recomputed": ({}, {"checkpoint_ratio": 1.0}),
    "selective": ({}, {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}),
    "recomputed, on the host": ({}, {"checkpoint_ratio": 1.0, "checkpoint_offload": True}),
    "foreach": ({}, {"optimizer": "adamw_foreach"}),
    "grouped": ({}, {"batching": "grouped"}),
    "packed": ({}, {"batching": "packed"}),
    "LoRA": ({"method": "lora"}, {}),
    "tensor": ({}, {"tensor": 2}),
    "sequence": ({}, {"tensor": 2, "sequence_parallel": True}),
    "tensor, fp16": ({"precision": "fp16"}, {"tensor": 2}),
    "FSDP2": ({}, SHARDED | {"zero_stage": 2}),
    "FSDP2, weights too": ({}, SHARDED | {"zero_stage": 3}),
    "FSDP2, recomputed": ({}, SHARDED | {"zero_stage": 3, "checkpoint_ratio": 1.0}),
    "FSDP2, offloaded": ({}, OFFLOADED | {"zero_stage": 3}),
    "FSDP2, offloaded, fp16": ({"precision": "fp16"}, OFFLOADED | {"zero_stage": 2}),
}

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a real CUDA"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Compiles the fake device, and runs all cases in one process that loads it before torch."""
    built = tmp_path_factory.mktemp("fake_cuda") / "fake_cuda.so"
    source = Path(__file__).with_name("fake_cuda.cpp")
    folder = Path(torch.__file__).parent
    libraries = ["-L", str(folder / "lib"), f"-Wl,-rpath,{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    flags = ["-O0", "-shared", "-fPIC", "-std=c++20", "-I", str(folder / "include")]
    compiler = ["g++", *flags, "-o", str(built), str(source), *libraries]
    subprocess.run(compiler, check=True, timeout=120)
    steps = [sys.executable, "-m", "tests.workers.fake_cuda.steps", str(built)]
    ran = subprocess.run(
        [*steps, json.dumps(list(CASES.values()))],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert ran.returncode == 0, ran.stderr
    return dict(zip(CASES, json.loads(ran.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_all_but_ddp_deepspeed_and_pipelines_mixes_no_devices(
    results: dict[str, dict[str, Any]], case: str
) -> None:
    """DDP's reducer, DeepSpeed's engine, pipelines and torch's Adafactor read what a fake lacks."""
    result = results[case]

    assert "error" not in result, result["error"]
    offloaded = CASES[case][1].get("offload_parameters") == "cpu"
    assert result["loss"] == "cuda:0"
    assert result["weights"] == (["cpu"] if offloaded else ["cuda:0"])
    assert (result["optimizer_bytes"] == 0) is offloaded
