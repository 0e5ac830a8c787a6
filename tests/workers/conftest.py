"""Worker groups of real ranks, shared by the tests of workers and started on first use."""

from collections.abc import Iterator

import pytest
import torch

from tests.rigs import stubborn
from tests.workers.launch import Group, Groups


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves groups of four ranks to the thorough run: two show each capability."""
    for item in items:
        if "four" in getattr(item, "fixturenames", ()):
            item.add_marker("thorough")


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Tiny tensors gain nothing from more threads, and tests share the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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


BACKENDS = ("gloo", pytest.param(stubborn.BACKEND, marks=pytest.mark.thorough))


@pytest.fixture(params=BACKENDS)
def peers(groups: Groups, request: pytest.FixtureRequest) -> Group:
    """Two warm ranks that wake when a peer fails, and two that do not, as under NCCL."""
    return groups.of(2, request.param)


@pytest.fixture
def four(groups: Groups) -> Group:
    """Four warm ranks over gloo."""
    return groups.of(4)
