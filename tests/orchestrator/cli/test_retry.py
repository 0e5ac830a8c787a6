"""`plimsoll retry` takes back what counts against plans."""

import json
from pathlib import Path

import pytest

from orchestrator.study.locks import exclusive_driver
from orchestrator.study.reader import load_records
from orchestrator.workspace import save_spec
from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Crashed
from tests.orchestrator.cli.commands import command
from tests.orchestrator.controller.sweeps import Sweep
from tests.orchestrator.records import make_spec
from tests.outcomes import make_measured, make_oom

RAISED = Crashed(cause="exception", rank=0, phase="forward", detail="ValueError: so")
OUTCOMES = (make_measured(20.0, 0.3), RAISED, make_oom(), RAISED)


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SweepSpec:
    """A study in the working directory: measured, crashed, out of memory, crashed."""
    monkeypatch.chdir(tmp_path)
    ours = Sweep(make_spec(budget={"trials": len(OUTCOMES), "minutes": 10, "trial_seconds": 60}))
    save_spec(ours.spec, "demo")
    ours.run(iter(OUTCOMES))
    return ours.spec


def numbers(spec: SweepSpec) -> list[int]:
    return [record.number for record in load_records(spec, "demo")]


def test_plans_of_crashed_trials_may_run_again(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = {record.plan for record in load_records(spec, "demo") if record.outcome == RAISED}
    code, said = command(capsys, "retry", "--crashed")

    assert code == 0
    assert "The plans of trials 1, 3 of demo count as untried" in " ".join(said.split())
    assert numbers(spec) == [0, 2]
    again = Sweep(spec)
    # the budget of four trials is not used up any more
    assert again.controller.state.stop_reason is None
    assert len(again.run(iter([make_measured()] * 2))) == 2
    untried = set(again.state.space.candidates) - {record.plan for record in again.state.records}
    assert taken <= untried | {record.plan for record in again.state.records[2:]}


def test_single_trials_are_taken_back_and_the_others_stay(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = command(capsys, "retry", "demo", "--trial", "2", "--trial", "3", "--json")

    assert code == 0
    assert json.loads(said)["result"]["trials"] == [2, 3]
    assert numbers(spec) == [0, 1]
    assert command(capsys, "retry", "--trial", "1")[0] == 0
    assert numbers(spec) == [0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "say which with --trial N, or --crashed"),
        (("--trial", "0"), "it did not fail, its plan was measured"),
        (("--trial", "9"), "the study has no such trial with a result"),
    ],
)
def test_what_cannot_be_taken_back_is_said(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    code, said = command(capsys, "retry", *arguments)

    assert code == 2
    assert words in " ".join(said.split())
    assert numbers(spec) == [0, 1, 2, 3]


def test_a_study_that_is_being_tuned_is_left_alone(
    spec: SweepSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    with exclusive_driver(spec, "demo"):
        code, said = command(capsys, "retry", "--crashed")

    assert code == 2
    assert "is being tuned by another driver" in said
    assert numbers(spec) == [0, 1, 2, 3]
