"""The clock, going on after a stop, and the packing; all steps for real, with tiny models."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.half_hour import PACK, STEPS, Step, _end, conduct, pack
from benchmarks.gpu.judge import forecasts, judged
from benchmarks.gpu.plain import rate_of
from benchmarks.gpu.results import DONE, FILE, Results, plan_rows, troubles
from benchmarks.gpu.worker import LoneWorker
from search_spaces.errors import UserError
from search_spaces.trial import Crashed, Measured

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks.gpu.half_hour"]
THREE = (
    Step(name="a", call="", seconds=60),
    Step(name="b", call="", seconds=90, whole=True),
    Step(name="c", call="", seconds=90),
)


def conducted(
    folder: Path, seconds: float, taking: float, ending: Callable[[Step], str] = lambda _: DONE
) -> list[tuple[str, float]]:
    """Steps that were started and their limits, each of which took so many seconds."""
    started: list[tuple[str, float]] = []

    def start(step: Step, limit: float) -> str:
        started.append((step.name, limit))
        return ending(step)

    conduct(THREE, Results(folder=folder), start, lambda: seconds - taking * len(started))
    return started


@pytest.mark.parametrize(
    ("seconds", "started"),
    [
        (300.0, [("a", 60.0), ("b", 90.0), ("c", 90.0)]),
        (140.0, [("a", 60.0), ("b", 90.0), ("c", 40.0)]),  # the last gets what is left
        (100.0, [("a", 60.0), ("c", 50.0)]),  # b would be cut, and c is worth a part
        (19.0, []),
    ],
)
def test_a_step_begins_with_its_time_or_with_a_part_that_is_worth_it(
    tmp_path: Path, seconds: float, started: list[tuple[str, float]]
) -> None:
    assert conducted(tmp_path, seconds, taking=50.0) == started


def test_a_step_that_has_ended_is_not_run_again(tmp_path: Path) -> None:
    conducted(tmp_path, 300.0, 1.0, lambda step: "out of time" if step.name == "b" else DONE)

    assert conducted(tmp_path, 300.0, 1.0) == [("b", 90.0)]
    assert conducted(tmp_path, 300.0, 1.0) == []


def test_a_result_is_read_again_and_a_cut_one_is_not(tmp_path: Path) -> None:
    results = Results(folder=tmp_path)
    results.add("s", "one", {"rate": 1.0})
    with (tmp_path / FILE).open("a") as opened:
        opened.write('{"step": "s", "item": "two", "ra')

    assert not results.has("s", "two")
    results.add("s", "three", {})

    assert [row["item"] for row in results.rows] == ["one", "three"]


def test_a_way_without_a_rate_and_a_step_without_an_end_are_named() -> None:
    rows = [
        {"step": "a", "item": "x", "way": "slow", "rate": None},
        {"step": "a", "item": "y", "way": "fast", "rate": None},
        {"step": "a", "item": "z", "way": "fast", "rate": 2.0},
        {"step": "a", "item": "f", "way": "float8", "rate": None, "missing": "torchao"},
        {"step": "a", "item": "t", "failed": "pytest ended with 1"},
        {"step": "a", "item": "end", "ended": DONE},
        {"step": "b", "item": "end", "ended": "out of time"},
    ]

    assert list(troubles(rows, ["a", "b", "c"])) == [
        "b: out of time",
        "c: not begun",
        "a, t: pytest ended with 1",
        "a: slow measured no rate",
    ]


def test_everything_is_packed_once_and_anew(tmp_path: Path) -> None:
    Results(folder=tmp_path).add("a", "x", {})
    (tmp_path / "tune").mkdir()
    (tmp_path / "tune" / "study.db").write_text("kept")

    for _ in range(2):
        with tarfile.open(pack(tmp_path)) as archive:
            assert archive.getnames() == [FILE, "tune/study.db"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [PACK, FILE, "tune"]


def test_a_step_ends_with_all_that_it_started() -> None:
    code = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c',"
        " 'import time; time.sleep(600)'], start_new_session=True); print(flush=True);"
        " time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    (child,) = psutil.Process(process.pid).children()

    _end(process)
    process.stdout.close()

    assert process.returncode == -signal.SIGTERM
    child.wait(60)


def test_a_machine_without_a_gpu_is_told_once(tmp_path: Path) -> None:
    command = [*COMMAND, "--out", str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)

    assert ended.returncode == 2
    assert ended.stderr.count("no CUDA GPU can be reached") == 1
    assert "Traceback" not in ended.stderr


def test_the_rate_of_a_plain_loop_is_that_of_its_steady_steps() -> None:
    seconds = [9.0, 3.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    said = [json.dumps({"step": at, "samples_per_second": 16 / s}) for at, s in enumerate(seconds)]

    assert rate_of("\n".join(["a warning", *said]), 16) == pytest.approx(16.0)
    with pytest.raises(UserError, match="3 steps"):
        rate_of("\n".join(said[:3]), 16)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_worker_runs_trial_after_trial_and_is_replaced_when_it_dies() -> None:
    spec, plan = LLAMA_1B.one_plan({"micro_batch": 2}, tiny=True)
    worker = LoneWorker()

    first, second = (worker.measure(spec, plan).outcome for _ in range(2))

    assert isinstance(first, Measured)
    assert isinstance(second, Measured)
    assert first.losses[:2] == second.losses[:2]  # nothing is left behind
    child = worker._child
    assert child is not None
    os.kill(child._process.pid or 0, signal.SIGKILL)
    assert isinstance(worker.measure(spec, plan).outcome, Crashed)
    assert isinstance(worker.measure(spec, plan).outcome, Measured)
    worker.stop()


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.alone
def test_all_steps_with_tiny_models_reach_rates_that_are_judged(tmp_path: Path) -> None:
    ended = subprocess.run([*COMMAND, "--tiny", "--out", str(tmp_path)], cwd=ROOT, check=False)

    assert ended.returncode == 0
    rows = Results(folder=tmp_path).rows
    assert {row["step"] for row in rows} == {step.name for step in STEPS}
    assert all(row["commit"] for row in rows if row["item"] != "end")
    trials = [row for row in rows if row["step"] == "plans" and "outcome" in row]
    assert {row["outcome"]["kind"] for row in trials} == {"measured", "out_of_memory"}
    assert all("phases" in r["outcome"] for r in trials if r["outcome"]["kind"] == "measured")
    models = tuple(forecasts(tmp_path, plan_rows(tmp_path), tiny=True))
    assert len(judged(models, cuda=False)["by_model"]) == 3
    assert (tmp_path / PACK).stat().st_size > 0
    subprocess.run([*COMMAND, "--tiny", "--out", str(tmp_path)], cwd=ROOT, check=True)
    assert Results(folder=tmp_path).rows == rows  # nothing is measured again
