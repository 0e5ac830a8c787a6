"""Groups of real ranks that the tests of workers share; started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.workers.launch import Group
from tests.workers.values import a_spec


class _Groups:
    """One group of each size; a new one where a test broke the old."""

    def __init__(self) -> None:
        self._groups: dict[int, Group] = {}

    def of(self, size: int) -> Group:
        group = self._groups.get(size)
        if group is None or not group.alive:
            group = self._groups[size] = Group(size, a_spec())
        return group

    def stop(self) -> None:
        for group in self._groups.values():
            group.stop()


@pytest.fixture(scope="session")
def _groups() -> Iterator[_Groups]:
    groups = _Groups()
    yield groups
    groups.stop()


@pytest.fixture
def pair(_groups: _Groups) -> Group:
    """Two ranks over gloo, warm."""
    return _groups.of(2)


@pytest.fixture
def alone(_groups: _Groups) -> Group:
    """One rank without a process group, warm."""
    return _groups.of(1)
