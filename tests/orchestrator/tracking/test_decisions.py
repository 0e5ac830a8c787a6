"""The log of decisions; `tests/benchmarks/simulation/test_replay.py` reads a whole one."""

from __future__ import annotations

from orchestrator.core.instructions import RequestCapacity
from orchestrator.core.placement import Shortfall
from orchestrator.tracking.decisions import instruction_to_json


def test_sets_are_in_order() -> None:
    """Another process, such as that of a replay, has another order of its sets."""
    names = frozenset("hgfedcba")

    asked = instruction_to_json(RequestCapacity(need=Shortfall(nodes=names)))

    assert asked["need"]["nodes"] == sorted(names)
