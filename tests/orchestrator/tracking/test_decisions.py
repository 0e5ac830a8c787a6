"""The log of decisions: an input a line, with the instructions that followed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.instructions import RequestCapacity
from orchestrator.core.placement import Shortfall
from orchestrator.tracking.decisions import decision_line, instruction_to_json
from orchestrator.tracking.events import LineFile
from tests.orchestrator.controller.sweeps import DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured, make_oom


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a sweep of two drivers, with a lost node, a crash, a stop and a validation."""
    path = tmp_path / "demo" / "decisions.jsonl"
    spec = make_spec(
        study={"folder": str(tmp_path), "sampler": "plimsoll"},
        budget={"trials": 5, "minutes": 60, "trial_seconds": 60},
        validation={"enabled": True, "repeats": 0},
    )
    first = Sweep(spec, PlayedCluster(make_nodes("a", "b")), groups=2)
    first.report(first.ask(), DIED, "a")
    first.report(first.ask(), make_oom(1.5))
    first.ask()
    first.stop()
    second = Sweep(spec, PlayedCluster(make_nodes("b", "c")), groups=2)
    second.report(second.ask(), DIED)
    second.run(iter([make_measured(30.0 + number) for number in range(9)]))
    assert second.state.ended is not None
    said: list[str] = []
    lines = LineFile(path, said.append)
    for sweep in (first, second):
        for given, instructions in sweep.decisions:
            lines.append(decision_line(given, instructions))
    lines.close()
    assert not said
    return path


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text().splitlines())


def test_each_line_has_an_input_and_the_instructions_that_followed(log: Path) -> None:
    lines = list(lines_of(log))

    kinds = [line["input"]["kind"] for line in lines]
    assert kinds.count("DriverStarted") == 2
    assert {"TrialFinished", "PlanProposed"} <= set(kinds)
    done = {one["kind"] for line in lines for one in line["instructions"]}
    assert done >= {"Run", "Store", "Abandon", "Propose", "Open", "Dismiss", "End"}
    started = lines[0]["input"]
    assert {"spec", "baseline", "plans"} <= started.keys()
    runs = [one for line in lines for one in line["instructions"] if one["kind"] == "Run"]
    assert all("spec" not in run["request"] for run in runs)
    assert {line["version"] for line in lines} == {1}


def test_sets_are_in_order() -> None:
    """Another process, such as that of a replay, has another order of its sets."""
    names = frozenset("hgfedcba")

    asked = instruction_to_json(RequestCapacity(need=Shortfall(nodes=names)))

    assert asked["need"]["nodes"] == sorted(names)
