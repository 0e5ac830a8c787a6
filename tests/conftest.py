"""What all tests share."""

from __future__ import annotations

import os

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

# Folders whose tests stay in one process of a parallel run, longest first: those of the workers
# share warm groups of ranks, and of the sweeps under Ray one at a time is enough for a machine.
_TOGETHER = ("tests/workers/", "tests/orchestrator/ray/")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a parallel run, says which tests share a process; all else goes file by file."""
    if not hasattr(config, "workerinput"):  # as pytest-xdist marks its processes
        return
    for item in items:
        file = item.nodeid.partition("::")[0]
        group = next((folder for folder in _TOGETHER if file.startswith(folder)), file)
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    matches = [place for place, folder in enumerate(_TOGETHER) if item.nodeid.startswith(folder)]
    return matches[0] if matches else len(_TOGETHER)
