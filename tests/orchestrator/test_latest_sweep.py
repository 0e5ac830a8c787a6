"""`report` and `ui` without a specification, and the state that reports read."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.api import find_study
from orchestrator.cli import main
from orchestrator.cli.console import ui_hint
from orchestrator.core.events import SweepEnded
from orchestrator.core.reasons import AllTried
from orchestrator.report.sweep_text import best_sentence
from orchestrator.workspace import save_spec
from search_spaces.specification.load import parse_spec
from tests.orchestrator.records import make_state
from tests.outcomes import make_measured, make_oom

SPEC = parse_spec("model: gpt2\ntrain: {global_batch: 32}", source="demo.yaml")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_latest_sweep_is_the_one_that_was_tuned_last(folder: Path) -> None:
    for age, name in ((2, "older"), (1, "newer"), (3, "oldest")):
        save_spec(SPEC, name)
        os.utime(f"plimsoll-runs/{name}/spec.yaml", (1e9 - age, 1e9 - age))

    found = find_study(None)

    assert found.name == "newer"
    assert found.spec.model == SPEC.model


@pytest.mark.parametrize("command", ["report", "ui"])
def test_before_any_sweep(folder: Path, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command])

    assert caught.value.code == 2
    assert "no sweep has run in plimsoll-runs yet" in capsys.readouterr().err


def test_the_hint_can_be_pasted_into_a_shell(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = folder / "bin" / "plimsoll"
    installed.parent.mkdir()
    installed.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(installed.parent))
    untracked = SPEC.model_copy(
        update={"tracking": SPEC.tracking.model_copy(update={"enabled": False})}
    )

    assert ui_hint(SPEC, None) == "plimsoll ui"
    assert ui_hint(SPEC, Path("my sweep.yaml")) == "plimsoll ui 'my sweep.yaml'"
    assert ui_hint(untracked, None) == ""


def test_why_nothing_was_found() -> None:
    crashed = make_state([make_oom(None), make_oom(None)])
    assert best_sentence(crashed).endswith("(2 out of memory)")
    stopped = SweepEnded(reason=AllTried(plans=2), at=1.0, regret_bound=None, untried=0)
    assert best_sentence(replace(make_state([]), ended=stopped)) == (
        "no trial finished: all 2 plans have been tried"
    )
    assert "4 % over usable memory" in best_sentence(make_state([make_measured(18.0, 0.99)]))
    state = make_state([make_measured(18.0)])
    state = replace(
        state, validations=(replace(state.records[0], validation=True, outcome=make_oom()),)
    )
    assert best_sentence(state) == (
        "no plan within the memory headroom passed validation (the validation"
        " of trial 0 failed: out of device memory in forward, wanted 130 % of the limit)"
    )
