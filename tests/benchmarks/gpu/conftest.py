"""Fixtures of tests of the GPU's programs: one worker for all of them, and a tiny run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.gpu.command import Asked
from benchmarks.gpu.lone_group import LoneGroup


@pytest.fixture(scope="session")
def group() -> Iterator[LoneGroup]:
    """A worker that takes trials of several models, so that few processes are started."""
    kept = LoneGroup(mixed=True)
    yield kept
    kept.stop()


@pytest.fixture
def asked(tmp_path: Path, group: LoneGroup) -> Asked:
    """A tiny run with time enough."""
    return Asked(out=tmp_path, tiny=True, until=time.monotonic() + 600, group=group)
