"""A tiny run of the GPU's programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.command import Asked


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Asked]:
    """A tiny run, whose worker ends with the test."""
    task = Asked(out=tmp_path, tiny=True, until=time.monotonic() + 600)
    yield task
    task.worker.stop()
