"""Ray's memory monitor or the kernel kills a worker: the outcome is out of host memory."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from orchestrator.study.reader import load_records
from search_spaces.specification.load import load_spec
from search_spaces.trial import Measured, OutOfMemory
from tests.orchestrator.cluster import awkward_model
from tests.orchestrator.cluster.cli import plimsoll_in
from tests.rigs.ray_head import environment, ray_head

SPEC = """
model: {{name: "awkward_model:make", config: {{hoards: 3}}}}
cluster: {{device: cpu, workers: 2}}
train: {{global_batch: 6, sequence_length: 8, precision: fp32}}
space: {{zero_stage: [0], checkpoint_ratio: [0.0], micro_batch: [1, 3]}}
objective: {{max_seconds: 0.5, interval: 0.2}}
validation: {{enabled: false}}
study: {{folder: {folder}/kept}}
tracking: {{enabled: false}}
"""
HOARDS = 3  # rows
LIMIT_BYTES = 2**29  # of the control group
ROOM_BYTES = 8 * 2**30  # for Ray, its workers and other tests, before the monitor steps in


@pytest.mark.thorough
def test_a_worker_that_the_memory_monitor_kills_ran_out_of_host_memory(tmp_path: Path) -> None:
    memory = psutil.virtual_memory()
    threshold = (memory.total - memory.available + ROOM_BYTES) / memory.total

    with ray_head(
        tmp_path,
        token=True,
        RAY_memory_usage_threshold=f"{threshold:.3f}",
        RAY_memory_monitor_refresh_ms="100",
    ) as environ:
        _run_out(tmp_path, environ)


@pytest.fixture
def memory_group() -> Iterator[Path]:
    """Creates a control group with a memory limit of `LIMIT_BYTES`."""
    root = Path("/sys/fs/cgroup")
    first = (root / "cgroup.controllers").exists()
    group = (root if first else root / "memory") / f"plimsoll-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.max" if first else "memory.limit_in_bytes")
        limit.write_text(str(LIMIT_BYTES))
    except OSError as error:
        pytest.skip(f"this machine lets nobody make a control group: {error}")
    yield group
    group.rmdir()


@pytest.mark.thorough
@pytest.mark.alone  # the kernel counts for the whole machine: whoever loses a worker now is misled
def test_a_worker_that_the_kernel_kills_for_memory_ran_out_of_host_memory(
    tmp_path: Path, memory_group: Path
) -> None:
    """SIGKILL from the kernel looks like any other; the kernel's counter tells them apart."""
    environ = environment(tmp_path, **{awkward_model.MEMORY_GROUP: str(memory_group)})

    assert "OOM killer" in _run_out(tmp_path, environ).detail


def _run_out(folder: Path, environ: dict[str, str]) -> OutOfMemory:
    """Runs a sweep of two plans; returns the outcome of the one that hoards memory."""
    shutil.copy(awkward_model.__file__, folder / "awkward_model.py")
    (folder / "sweep.yaml").write_text(SPEC.format(folder=folder))
    sweep = plimsoll_in(environ, "tune", "sweep.yaml", folder=folder)
    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    outcomes = {
        record.plan.micro_batch: record.outcome
        for record in load_records(load_spec(folder / "sweep.yaml"), "sweep")
    }
    assert isinstance(outcomes[1], Measured)
    greedy = outcomes[HOARDS]
    assert isinstance(greedy, OutOfMemory), greedy
    assert greedy.where == "host"
    return greedy
