"""The training step on fake CUDA tensors: any mix of devices is an error there, as on a GPU."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.commands import run_command

ROOT = Path(__file__).parents[3]
SHARDED = {"data": 2, "micro_batch": 1}
OFFLOADED = SHARDED | {"offload_parameters": "cpu", "offload_optimizer": "cpu"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bf16": ({}, {}),
    "fp16": ({"precision": "fp16"}, {}),
    "eager": ({}, {"attention": "eager"}),
    "recomputed": ({}, {"checkpoint_ratio": 1.0}),
    "selective": ({}, {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"}),
    "recomputed, on the host": ({}, {"checkpoint_ratio": 1.0, "checkpoint_offload": True}),
    "packed": ({}, {"batching": "packed"}),
    "LoRA": ({"method": "lora"}, {}),
    "tensor": ({}, {"tensor": 2}),
    "sequence": ({}, {"tensor": 2, "sequence_parallel": True}),
    "FSDP2": ({}, SHARDED | {"zero_stage": 2}),
    "FSDP2, weights too": ({}, SHARDED | {"zero_stage": 3}),
    "FSDP2, offloaded": ({}, OFFLOADED | {"zero_stage": 3}),
    "FSDP2, offloaded, fp16": ({"precision": "fp16"}, OFFLOADED | {"zero_stage": 2}),
}
# one of each way to compute; all others whose steps read no values agree as well, but for the
# norms' statistics of nemotron, and FNet, whose FFT CUDA does not have in bf16
MODELS = (
    *(("causal-lm", name) for name in ("llama", "gpt2", "gpt_neox", "phi", "arcee", "mixtral")),
    *(("causal-lm", name) for name in ("gemma3_text", "deepseek_v3", "bloom", "mamba", "gpt_oss")),
    *(("masked-lm", name) for name in ("bert", "deberta-v2", "funnel")),
    ("seq2seq", "t5"),
    ("sequence-classification", "xlnet"),
)

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has a real CUDA"),
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiles the fake device."""
    built = tmp_path_factory.mktemp("fake_cuda") / "fake_cuda.so"
    source = Path(__file__).with_name("fake_cuda.cpp")
    folder = Path(torch.__file__).parent
    libraries = ["-L", str(folder / "lib"), f"-Wl,-rpath,{folder / 'lib'}", "-ltorch_cpu", "-lc10"]
    flags = ["-O0", "-shared", "-fPIC", "-std=c++20", "-I", str(folder / "include")]
    compiler = ["g++", *flags, "-o", str(built), str(source), *libraries]
    subprocess.run(compiler, check=True, timeout=1200)
    return built


def _run(program: str, library: Path, cases: Any) -> list[Any]:
    """Runs cases in one process, which loads the device before torch."""
    ran = run_command(
        [sys.executable, "-m", f"tests.workers.fake_cuda.{program}", library, json.dumps(cases)],
        folder=ROOT,
        environment=os.environ | {"PYTHONPATH": str(ROOT)},
        seconds=1200,
    )
    assert ran.returncode == 0, ran.stderr
    results: list[Any] = json.loads(ran.stdout.splitlines()[-1])
    return results


@pytest.fixture(scope="module")
def results(library: Path) -> dict[str, dict[str, Any]]:
    return dict(zip(CASES, _run("steps", library, list(CASES.values())), strict=True))


@pytest.fixture(scope="module")
def differing(library: Path) -> dict[tuple[str, str], Any]:
    return dict(zip(MODELS, _run("operators", library, MODELS), strict=True))


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


@pytest.mark.parametrize("model", MODELS, ids=" ".join)
def test_the_trace_emulates_autocast_operator_by_operator(
    differing: dict[tuple[str, str], Any], model: tuple[str, str]
) -> None:
    """Compares eager attention: which fused kernel torch takes, a fake device cannot tell."""
    assert differing[model] == []
