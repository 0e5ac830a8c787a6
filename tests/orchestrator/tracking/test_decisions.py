"""The log of decisions, and deciding on its inputs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.failures import failure_decision
from orchestrator.core.instructions import Propose, RequestCapacity
from orchestrator.core.placement import Shortfall
from orchestrator.report.replay_text import replay_lines, step_to_json
from orchestrator.tracking.decisions import DecisionLog, instruction_to_json, replay
from orchestrator.tracking.events import LineFile
from search_spaces.errors import UserError
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
    lines = DecisionLog(lines=LineFile(path, said.append))
    for sweep in (first, second):
        for given, instructions in sweep.decisions:
            lines.write(given, instructions)
    lines.close()
    assert not said
    return path


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    return (json.loads(line) for line in path.read_text().splitlines())


def test_the_same_code_decides_the_same(log: Path) -> None:
    steps = list(replay(log))

    assert len(steps) == len(list(lines_of(log)))
    assert not any(step.differs for step in steps)
    assert [step.kind for step in steps].count("DriverStarted") == 2
    done = {one["kind"] for step in steps for one in step.recorded}
    assert done >= {"Run", "Store", "Abandon", "Propose", "Open", "Dismiss", "End"}
    assert list(replay_lines(steps, len(steps)))[-1] == (
        f"{len(steps)} inputs; today's code decides the same on all of them"
    )


def test_other_decisions_are_shown(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never_retry(*arguments: Any, **options: Any) -> Any:
        return replace(failure_decision(*arguments, **options), retry=False)

    monkeypatch.setattr("orchestrator.core.handle.failure_decision", never_retry)
    steps = list(replay(log))

    first = next(step for step in steps if step.differs)
    assert first.kind == "TrialFinished"
    assert "Abandon" in [one["kind"] for one in first.recorded]
    assert "Store" in [one["kind"] for one in first.today]
    assert step_to_json(first)["today"] == list(first.today)
    shown = list(replay_lines([first], len(steps)))
    assert "abandon trial" in shown[0]
    assert shown[1].strip().startswith("today: ")
    assert "decides otherwise on 1" in shown[-1]


def test_sets_are_in_order() -> None:
    """Another process, such as that of a replay, has another order of its sets."""
    names = frozenset("hgfedcba")

    asked = instruction_to_json(RequestCapacity(needs=(Shortfall(nodes=names),)))
    proposing = instruction_to_json(Propose(accelerators=names))

    assert asked["needs"][0]["nodes"] == proposing["accelerators"] == sorted(names)


def test_a_line_that_was_cut_short_is_left_out(log: Path) -> None:
    before = list(replay(log))
    log.write_bytes(log.read_bytes()[:-20])

    assert list(replay(log)) == before[:-1]


@pytest.mark.parametrize(
    "line",
    ['{"version": 1}', '{"version": 1, "input": {"kind": "Tick"}}', '{"version": 9}', "[]", "7"],
)
def test_another_file_is_a_sentence(log: Path, line: str) -> None:
    log.write_text(f"{log.read_text()}{line}\n")

    with pytest.raises(UserError, match=r"line \d+ of .* is not a decision of version 1"):
        list(replay(log))


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read: No such file"):
        list(replay(tmp_path / "decisions.jsonl"))


def test_no_secret_is_logged(log: Path, tmp_path: Path) -> None:
    """Addresses are no part of what workers get, and no part of the log."""
    spec = make_spec(
        study={"folder": str(tmp_path / "other"), "sampler": "random"},
        tracking={"uri": "http://ann:hunter2@mlflow:5000"},
    )
    sweep = Sweep(spec)
    path = tmp_path / "other.jsonl"
    lines = DecisionLog(lines=LineFile(path, lambda _: None))
    for given, instructions in sweep.decisions:
        lines.write(given, instructions)
    lines.close()

    assert path.stat().st_size
    assert "hunter2" not in path.read_text()
