"""Deciding on the inputs of a past sweep again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.simulation.replay import main, replay, replay_lines
from orchestrator.core.failures import failure_decision
from orchestrator.core.handle import handle, start
from orchestrator.core.inputs import NodesChanged, TrialOpened
from orchestrator.journal import Journal
from search_spaces.errors import UserError
from search_spaces.facts import StepFindings, Understanding
from tests.orchestrator.controller.sweeps import CLUSTER, DIED, PlayedCluster, Sweep, make_nodes
from tests.orchestrator.core.driven import SPACE, driver, nodes
from tests.orchestrator.records import BEGAN, LLAMA, make_spec
from tests.outcomes import make_measured, make_oom


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """The log of a sweep of two drivers, with a lost node, a crash, a stop and a validation."""
    path = tmp_path / "demo" / "journal.jsonl"
    spec = make_spec(
        study={"folder": str(tmp_path), "sampler": "plimsoll"},
        budget={"trials": 5, "minutes": 60, "trial_seconds": 60},
        validation={"enabled": True, "repeats": 0},
    )
    nodes = PlayedCluster(make_nodes("a", "b"))
    first = Sweep(spec, nodes, groups=2, journal=Journal(path))
    first.report(first.ask(), DIED, "a")
    first.report(first.ask(), make_oom(1.5))
    first.ask()
    first.stop()
    nodes = PlayedCluster(make_nodes("b", "c"))
    second = Sweep(spec, nodes, groups=2, journal=Journal(path))
    second.report(second.ask(), DIED)
    second.run(iter([make_measured(30.0 + number) for number in range(9)]))
    assert second.state.ended is not None
    return path


def test_the_same_code_decides_the_same(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = list(replay(log))

    assert len(steps) == len(log.read_text().splitlines())
    assert not any(step.differs for step in steps)
    assert [step.kind for step in steps].count("DriverStarted") == 2
    done = {one["kind"] for step in steps for one in step.recorded}
    assert done >= {"Run", "Store", "Abandon", "Propose", "Open", "Dismiss", "End"}
    runs = [one for step in steps for one in step.recorded if one["kind"] == "Run"]
    assert all("spec" not in run["request"] for run in runs)
    assert main([str(log.parent)]) == 0
    shown = capsys.readouterr().out
    assert "start group group-1, run trial 0 on group-1" in shown
    assert shown.endswith("today's code decides the same on all of them\n")


def test_other_decisions_are_shown(
    log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never_retry(*arguments: Any, **options: Any) -> Any:
        return replace(failure_decision(*arguments, **options), retry=False)

    monkeypatch.setattr("orchestrator.core.handle.failure_decision", never_retry)
    steps = list(replay(log))

    first = next(step for step in steps if step.differs)
    assert first.kind == "TrialFinished"
    assert "Abandon" in [one["kind"] for one in first.recorded]
    assert "Store" in [one["kind"] for one in first.today]
    shown = list(replay_lines([first]))
    assert "abandon trial" in shown[0]
    assert shown[1].strip().startswith("today: ")
    assert "decides otherwise on 1" in shown[-1]
    assert main([str(log.parent)]) == 1
    assert "abandon trial" in capsys.readouterr().out


def test_a_line_that_was_cut_short_is_left_out(log: Path) -> None:
    before = list(replay(log))
    log.write_bytes(log.read_bytes()[:-20])

    assert list(replay(log)) == before[:-1]


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize(
    "line",
    ['{"version": 3}', '{"version": 3, "input": {"kind": "Tick"}}', '{"version": 9}', "[]", "7"],
)
def test_another_file_is_a_sentence(log: Path, line: str) -> None:
    log.write_text(f"{log.read_text()}{line}\n")

    with pytest.raises(UserError, match=r"line \d+ of .* is not an input of version 3"):
        list(replay(log))


def test_a_missing_file_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "journal.jsonl cannot be read: No such file" in capsys.readouterr().err


def test_trials_get_what_the_probe_found_as_they_did_then(tmp_path: Path) -> None:
    model = replace(LLAMA, step=StepFindings(carries_state=True))
    understanding = Understanding(data=None, model=model, cluster=CLUSTER, ranks=2)
    started = driver(space=replace(SPACE, step=model.step), understanding=understanding)
    journal, (state, instructions) = Journal(tmp_path / "journal.jsonl"), start(started)
    journal.record(started, instructions, "demo")
    for given in (NodesChanged(nodes=nodes("a"), at=BEGAN), TrialOpened(number=0, at=BEGAN)):
        state, instructions = handle(state, given)
        journal.record(given, instructions, "demo")
    journal.close()

    *_, opened = replay(tmp_path / "journal.jsonl")
    (run,) = (one for one in opened.recorded if one["kind"] == "Run")
    assert run["request"]["step"]["carries_state"]
    assert not opened.differs
