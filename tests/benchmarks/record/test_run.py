"""A real recording that is stopped and goes on; a plan runs out of memory, one raises."""

from __future__ import annotations

import csv
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.published.baseline import ConstantMfu
from benchmarks.search.surfaces import surfaces_in
from tests.orchestrator.cluster import awkward_model
from tests.rigs.ray_head import environment

pytestmark = pytest.mark.thorough
SPEC = """
model: {name: "awkward_model:make", config: {raises: 2, too_large: 16}}
cluster: {device: cpu, workers: 2, memory_gib: 0.5}
train: {global_batch: 128, sequence_length: 8, precision: fp32}
space: {zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 2, 16, 64]}
objective: {max_seconds: 1, interval: 0.0001, max_steps: 100000}
budget: {trial_seconds: 12}
"""
ENDINGS = {"1": "measured", "2": "crashed", "16": "out_of_memory", "64": "measured"}
RECORD = (
    sys.executable,
    "-m",
    "benchmarks.record",
    "all.yaml",
    "--out",
    "out/all.csv",
    "--repeats",
)
REPOSITORY = str(Path(__file__).parents[3])
STOP_AFTER = 2  # measurements

Stop = tuple[int, list[dict[str, str]], str]  # exit code, rows and errors


def recorded(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs the command in a folder, which is its home too, and waits for it."""
    return subprocess.run(
        [*RECORD, *arguments],
        cwd=folder,
        env=environment(folder, PYTHONPATH=REPOSITORY),
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )


def prepared(folder: Path) -> Path:
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "all.yaml").write_text(SPEC)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("recording"))


@pytest.fixture(scope="module")
def stopped(folder: Path) -> Stop:
    """A recording that gets Ctrl-C after its first measurements, as from a terminal."""
    return stopped_by(lambda driver: os.killpg(driver, signal.SIGINT), folder)


def stopped_by(stop: Callable[[int], None], folder: Path) -> Stop:
    driver = subprocess.Popen(
        [*RECORD, "2"],
        cwd=folder,
        env=environment(folder, PYTHONPATH=REPOSITORY),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    if any(line.startswith(f"[{STOP_AFTER} of 8]") for line in driver.stdout):
        stop(driver.pid)
    out, err = driver.communicate(timeout=120)
    assert (folder / "out" / "all.csv").exists(), out + err
    return driver.returncode, rows(folder), err


@pytest.fixture(scope="module")
def resumed(stopped: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return recorded("2", folder=folder)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "all.csv").open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


def test_what_was_measured_is_kept(stopped: Stop) -> None:
    assert_kept(stopped)


def test_nothing_is_left_running(stopped: object, folder: Path) -> None:
    left = [
        process.info["cmdline"]
        for process in psutil.process_iter(["cmdline", "environ"])
        if (process.info["environ"] or {}).get("HOME") == str(folder)
    ]

    assert left == []


def assert_kept(stopped: Stop) -> None:
    code, kept, err = stopped
    assert code == 130, err
    assert STOP_AFTER <= len(kept) < 8
    assert "run the same command to resume" in err
    assert "Traceback" not in err


def test_the_same_command_measures_what_is_left(
    stopped: Stop, resumed: subprocess.CompletedProcess[str], folder: Path
) -> None:
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    kept = stopped[1]
    assert f"8 measurements, {len(kept)} of them made before" in resumed.stdout
    assert "[8 of 8]" in resumed.stdout
    found = rows(folder)
    assert found[: len(kept)] == kept
    assert Counter((row["micro_batch"], row["repeat"]) for row in found) == {
        (micro, repeat): 1 for micro in ENDINGS for repeat in ("1", "2")
    }
    assert {row["ranking_sets"] for row in found} == {found[0]["ranking_sets"]}


def test_every_plan_has_its_ending(resumed: object, folder: Path) -> None:
    for row in rows(folder):
        assert row["outcome"] == ENDINGS[row["micro_batch"]]
        assert row["oom"] == str(row["micro_batch"] == "16").lower()
        failed = row["outcome"] == "crashed"
        assert row["notes"].startswith("RUN FAILED: ") is failed
        assert float(row["trial_seconds"]) > 0
    wanted = [float(row["wanted_gib"]) for row in rows(folder) if row["wanted_gib"]]
    assert len(wanted) == 2
    assert min(wanted) >= 2


def test_what_is_written_can_be_read(resumed: object, folder: Path) -> None:
    (surface,) = surfaces_in(folder / "out", lambda _: ConstantMfu(), least=4)

    assert surface.best > 0
    assert np.isnan(surface.rate).any()
    assert (folder / "out" / "all.yaml").is_file()


def test_the_best_alone_are_measured_again(resumed: object, folder: Path) -> None:
    before = rows(folder)

    ended = recorded("3", "--best", "1", folder=folder)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "3 measurements, 2 of them made before" in ended.stdout
    after = rows(folder)
    assert after[:-1] == before
    rates = {
        micro: sum(float(row["samples_per_s"]) for row in before if row["micro_batch"] == micro)
        for micro in ("1", "64")
    }
    assert after[-1]["micro_batch"] == max(rates, key=lambda micro: rates[micro])
    assert after[-1]["repeat"] == "3"
