"""A tiny run of the GPU's programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.task import Task


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    """A tiny run, whose worker ends with the test."""
    task = Task(out=tmp_path, tiny=True, until=time.monotonic() + 600)
    yield task
    task.worker.stop()
