"""What all tests share."""

from __future__ import annotations

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# the same examples every run: a red build means a change, not luck
settings.register_profile(
    "plimsoll",
    deadline=None,
    derandomize=True,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "plimsoll"))

_WORKERS = "tests/workers/"
# Each of these two parts stays in one process of a parallel run: its tests share groups of ranks
_SPLITTING = (f"{_WORKERS}engines/", f"{_WORKERS}parallel/")
_TRAINING = f"{_WORKERS}the rest"
# and these have none
_ALONE = tuple(
    f"{_WORKERS}{name}" for name in ("probing/", "test_standalone.py", "test_trace.py", "tracing/")
)
_SWEEPS = "tests/orchestrator/ray/"


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """In a parallel run, tests are handed out part by part: by shared ranks, else by file."""
    from xdist.scheduler import LoadScopeScheduling

    class ByPart(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _part(nodeid)

    return ByPart(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a parallel run, puts what takes longest first."""
    if hasattr(config, "workerinput"):  # as pytest-xdist marks its processes
        items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    part = _part(item.nodeid)
    if part == _SPLITTING[0]:
        return 0
    return 1 if part.startswith(_SWEEPS) else 2 if part == _TRAINING else 3


def _part(nodeid: str) -> str:
    """The name of what is handed out together."""
    if not nodeid.startswith(_WORKERS) or nodeid.startswith(_ALONE):
        return nodeid.partition("::")[0]
    return _SPLITTING[0] if nodeid.startswith(_SPLITTING) else _TRAINING
