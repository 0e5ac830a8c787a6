"""A plan that needs another allocator gets new processes: a real sweep over both."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.orchestrator.cluster import telling_model
from tests.orchestrator.cluster.cli import plimsoll

SPEC = """
model: telling_model:make
cluster: {device: cpu, workers: 1}
train: {global_batch: 4, precision: fp32}
space: {micro_batch: [4], allocator: [default, mmap]}
objective: {max_seconds: 0.2, interval: 0.5}
validation: {enabled: false}
tracking: {enabled: false}
study: {sampler: random}
"""


@pytest.mark.thorough
def test_each_allocator_has_processes_of_its_own(tmp_path: Path) -> None:
    shutil.copy(telling_model.__file__, tmp_path / "telling_model.py")
    (tmp_path / "allocator.yaml").write_text(SPEC)
    told = tmp_path / telling_model.FOLDER
    told.mkdir()

    sweep = plimsoll("tune", "allocator.yaml", folder=tmp_path)

    assert sweep.returncode == 0, sweep.stdout + sweep.stderr
    assert "needs processes started with MALLOC_MMAP_THRESHOLD_=1048576" in sweep.stdout
    assert {path.read_text() for path in told.iterdir()} == {"", "1048576"}
