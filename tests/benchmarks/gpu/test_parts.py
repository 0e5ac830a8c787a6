"""The common front, the ceilings, and plain loops beside the tool."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import honesty, judge
from benchmarks.gpu.__main__ import PARTS
from benchmarks.gpu.cases import LLAMA_1B, space_of
from benchmarks.gpu.ceilings import device_of, measure, shapes_of_models
from benchmarks.gpu.plain import rate_of
from benchmarks.gpu.task import Task, run_part
from search_spaces.errors import ClusterError, UserError
from search_spaces.hardware.catalogue import known_device, load_device_file
from search_spaces.trial import Crashed, Measured

ROOT = Path(__file__).parents[3]


def test_a_part_writes_its_figures_and_where_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "measure", lambda _: {"speed": 0.1})

    assert run_part("judge", tmp_path, tiny=True)

    kept = json.loads((tmp_path / "judge.json").read_text())
    assert (kept["speed"], kept["tiny"], kept["gpus"]) == (0.1, True, [])
    assert kept["versions"]["torch"]
    assert "commit" in kept
    assert kept["command"]


def test_what_a_user_can_mend_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(task: Task) -> None:
        raise ClusterError("the worker did not come up")

    monkeypatch.setattr(judge, "measure", measure)

    assert not run_part("judge", tmp_path, tiny=True)
    assert "judge: the worker did not come up" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_all_parts_are_there() -> None:
    assert all(importlib.import_module(f"benchmarks.gpu.{part}").measure for part in PARTS)


def test_a_machine_without_a_gpu_is_told_once(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert ended.returncode == 2
    assert ended.stderr.count("no CUDA GPU can be reached") == 1
    assert "Traceback" not in ended.stderr


@pytest.mark.thorough
@pytest.mark.slow
def test_a_worker_runs_trial_after_trial_and_is_replaced_when_it_dies(task: Task) -> None:
    objective = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.2, "interval": 0.1}
    spec = LLAMA_1B.spec(tiny=True, objective=objective)
    plan = space_of(spec, task.worker.here(spec)).baseline

    first, second = (task.worker.measure(spec, plan).outcome for _ in range(2))

    assert isinstance(first, Measured)
    assert isinstance(second, Measured)
    assert first.losses[:2] == second.losses[:2]  # nothing is left behind
    child = task.worker._child
    assert child is not None
    os.kill(child._process.pid or 0, signal.SIGKILL)
    assert isinstance(task.worker.measure(spec, plan).outcome, Crashed)
    assert isinstance(task.worker.measure(spec, plan).outcome, Measured)


# ---------------------------------------------------------------- ceilings


@pytest.mark.thorough
@pytest.mark.slow
def test_a_probe_is_a_device_file_that_forecasts_find(task: Task) -> None:
    found = measure(task)

    assert {row["precision"] for row in found["rows"]} == {"fp32", "bf16", "fp16"}
    for row in found["rows"]:
        flops = row["tflops_per_second"] * 1e12 * row["seconds"]
        assert flops == pytest.approx(2 * row["rows"] * row["columns"] * row["inner"])
    assert found["launch_seconds"] > 0
    (device,) = load_device_file(task.out / "device.yaml")
    assert device_of(task.out, "whatever") == device


def test_without_a_file_the_catalogue_is_asked(tmp_path: Path) -> None:
    assert device_of(tmp_path, "NVIDIA H100 80GB HBM3") == known_device("H100-80-SXM")


def test_shapes_are_those_of_the_models() -> None:
    shapes = set(shapes_of_models())

    assert (8192, 8192, 3072) in shapes  # Llama-3.2 3B: up of its feed-forward, 8192 tokens
    assert (8192, 50257, 1600) in shapes  # GPT-2 XL: its head


# ---------------------------------------------------------------- honesty


def test_the_worst_of_the_plain_loops_counts() -> None:
    rows = [
        {"plain_ratio": 1.019, "losses_hold": True},
        {"plain_ratio": 0.97, "losses_hold": False},
        {"outcome": "out_of_memory"},
    ]

    found = honesty.judged(rows)

    assert (found["plans"], found["losses_hold"]) == (2, 1)
    assert found["worst"] == pytest.approx(0.03)
    assert honesty.judged(rows[2:])["worst"] is None


def test_the_rate_of_a_plain_loop_is_that_of_its_steady_steps() -> None:
    seconds = [9.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    said = [json.dumps({"step": at, "samples_per_second": 16 / s}) for at, s in enumerate(seconds)]

    assert rate_of("\n".join(["a warning", *said]), 16) == pytest.approx(16.0)
    with pytest.raises(UserError, match="3 steps"):
        rate_of("\n".join(said[:3]), 16)


@pytest.mark.thorough
def test_a_plan_its_exported_script_and_a_plain_loop(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(honesty, "_LONGEST_SECONDS", 900.0)  # beside other tests

    (row,) = honesty.measure(task)["rows"]

    assert row["losses_hold"] is True
    assert row["differs"].count(";") == 0  # settings are the plan's; speed may differ here
    assert row["plain_ratio"] == pytest.approx(row["plain"] / row["ours"])
    assert honesty.measure(task)["rows"] == [row]  # kept, and not compared again
