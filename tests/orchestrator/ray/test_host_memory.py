"""Ray's memory monitor kills a worker: out of the host's memory, told as that, and survived."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from orchestrator.study import load_records
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.spec.load import load_spec
from tests.orchestrator.ray import awkward_model
from tests.orchestrator.ray.cli import PLIMSOLL
from tests.orchestrator.ray.head import ray_head

SPEC = """
model: awkward_model:make
cluster: {{device: cpu, workers: 2}}
train: {{global_batch: 6, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 3]}}
objective: {{max_seconds: 0.5, interval: 0.2}}
proof: {{enabled: false}}
study: {{folder: {folder}/kept}}
tracking: {{enabled: false}}
"""
ROOM_BYTES = 8 * 2**30  # for Ray, its workers and other tests, before the monitor steps in


@pytest.mark.thorough
def test_a_worker_that_the_memory_monitor_kills_ran_out_of_host_memory(tmp_path: Path) -> None:
    shutil.copy(awkward_model.__file__, tmp_path / "awkward_model.py")
    (tmp_path / "sweep.yaml").write_text(SPEC.format(folder=tmp_path))
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ROOM_BYTES) / memory.total

    with ray_head(
        tmp_path,
        token=True,
        RAY_memory_usage_threshold=f"{threshold:.3f}",
        RAY_memory_monitor_refresh_ms="100",
    ) as environ:
        sweep = subprocess.run(
            [PLIMSOLL, "tune", "sweep.yaml"],
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    outcomes = {
        record.plan.micro_batch: record.outcome
        for record in load_records(load_spec(tmp_path / "sweep.yaml"), "sweep")
    }
    assert isinstance(outcomes[1], Measured)
    assert isinstance(outcomes[awkward_model.HOARDS], OutOfMemory), outcomes[awkward_model.HOARDS]
    assert outcomes[awkward_model.HOARDS].where == "host"
