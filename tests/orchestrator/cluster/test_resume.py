"""A driver that is killed in the middle of a trial; the same command then resumes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from benchmarks.rigs.ray_head import environment
from orchestrator.core.records import Record
from orchestrator.study.reader import load_records
from search_spaces.spec.load import load_spec
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import PLIMSOLL, plimsoll

SPEC = """
model: {name: "awkward_model:make", config: {pass_seconds: 0.01}}
cluster: {device: cpu, workers: 2, memory_gib: 0.5}
train: {global_batch: 128, sequence_length: 8, precision: fp32}
space: {zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 64]}
objective: {max_seconds: 4, interval: 0.0001, max_steps: 100000}
validation: {enabled: false}
study: {storage: "sqlite:///study.db"}
tracking: {enabled: false}
"""
# the campaign of faults ends drivers in each run of the tests, and counts what their sweeps hold
pytestmark = pytest.mark.thorough
UNDER_WAY = "trial 1 starts"
GONE_SECONDS = 150


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(awkward_model.__file__, tmp_path / "awkward_model.py")
    (tmp_path / "sweep.yaml").write_text(SPEC)
    return tmp_path


def test_what_was_under_way_is_run_once_more_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _kill_in_the_second_trial(folder)

    again = plimsoll("tune", "sweep.yaml", folder=folder)

    assert again.returncode == 0, again.stdout + again.stderr
    assert "trial 1 was running when its driver died" in again.stdout
    monkeypatch.chdir(folder)
    records = load_records(load_spec(folder / "sweep.yaml"), "sweep")
    assert Counter(_micro_batches(records)) == {1: 1, 64: 1}
    assert [record.number for record in records] == [0, 2]


def _kill_in_the_second_trial(folder: Path) -> None:
    driver = subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml"],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert driver.stdout is not None
    with driver.stdout:
        try:
            if not any(UNDER_WAY in line for line in driver.stdout):
                pytest.fail("the driver ended before its second trial")
            time.sleep(1)
        finally:
            driver.kill()
            driver.wait(10)
    _wait_until_its_ray_is_gone(folder)


def _wait_until_its_ray_is_gone(folder: Path) -> None:
    """Ends, by id, processes of Ray that do not end by themselves after the driver."""
    until = time.monotonic() + GONE_SECONDS
    while left := _processes_at_home_in(folder):
        if time.monotonic() > until:
            for process in left:
                os.kill(process.pid, signal.SIGKILL)
            pytest.fail(f"{len(left)} processes outlived their driver")
        time.sleep(1)


def _processes_at_home_in(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("HOME") == str(folder)
    ]


def _micro_batches(records: tuple[Record, ...]) -> list[int]:
    return [record.plan.micro_batch for record in records]
