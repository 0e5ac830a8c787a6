"""Groups of real ranks that the tests of workers share; started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.launch import Group, Groups


@pytest.fixture(scope="session")
def groups() -> Iterator[Groups]:
    """A group of each size, warm."""
    shared = Groups()
    yield shared
    shared.stop()


@pytest.fixture
def alone(groups: Groups) -> Group:
    """One rank without a process group, warm."""
    return groups.of(1)


@pytest.fixture
def pair(groups: Groups) -> Group:
    """Two ranks over gloo, warm."""
    return groups.of(2)


@pytest.fixture
def four(groups: Groups) -> Group:
    """Four ranks over gloo, warm."""
    return groups.of(4)


@pytest.fixture
def eight(groups: Groups) -> Group:
    """Eight ranks over gloo, warm."""
    return groups.of(8)
