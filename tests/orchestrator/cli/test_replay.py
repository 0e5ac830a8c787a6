"""`plimsoll replay` shows the decisions of a sweep, and whether today's code decides the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.tracking.decisions import DecisionLog, decisions_file
from orchestrator.tracking.events import LineFile
from orchestrator.workspace import save_spec
from tests.orchestrator.cli.commands import command
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.records import make_spec


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The log of a sweep of two trials in the current folder."""
    monkeypatch.chdir(tmp_path)
    sweep = Sweep(make_spec(budget={"trials": 2, "minutes": 10, "trial_seconds": 60}))
    save_spec(sweep.spec, "demo")
    sweep.run()
    path = decisions_file(sweep.spec, "demo")
    lines = DecisionLog(lines=LineFile(path, print))
    for given, instructions in sweep.decisions:
        lines.write(given, instructions)
    lines.close()
    return path


def test_a_study_is_replayed(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, shown = command(capsys, "replay", "demo")

    assert code == 0
    assert "run trial 1 on group-1" in shown
    assert shown.endswith("today's code decides the same on all of them")
    assert command(capsys, "replay", str(log)) == (0, shown)
    summary = command(capsys, "replay", "--differences")[1]
    assert summary == "9 inputs; today's code decides the same on all of them"


def test_what_differs_ends_with_code_one(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.write_text(log.read_text().replace('"kind":"Store"', '"kind":"Kept"'))

    code, shown = command(capsys, "replay", "--differences")
    assert code == 1
    assert "kept trial 0" in shown
    assert "today: announce, store trial 0" in shown
    code, document = command(capsys, "replay", "--json", "--differences")
    assert code == 1
    steps = json.loads(document)["result"]["steps"]
    assert [step["differs"] for step in steps] == [True, True]


def test_a_study_without_a_log_is_a_sentence(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.unlink()

    code, said = command(capsys, "replay", "demo")

    assert code == 2
    assert "decisions.jsonl cannot be read: No such file" in said
