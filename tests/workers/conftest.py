"""Worker groups of real ranks, shared by the tests of workers and started on first use."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.launch import Group, Groups


@pytest.fixture(scope="session")
def groups() -> Iterator[Groups]:
    """Warm worker groups, one of each size."""
    shared = Groups()
    yield shared
    shared.stop()


@pytest.fixture
def alone(groups: Groups) -> Group:
    """A warm rank without a process group."""
    return groups.of(1)


@pytest.fixture
def pair(groups: Groups) -> Group:
    """Two warm ranks over gloo."""
    return groups.of(2)


@pytest.fixture
def four(groups: Groups) -> Group:
    """Four warm ranks over gloo."""
    return groups.of(4)


@pytest.fixture
def eight(groups: Groups) -> Group:
    """Eight warm ranks over gloo."""
    return groups.of(8)
