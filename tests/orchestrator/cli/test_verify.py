"""`plimsoll verify` on folders that were exported, run for real on two ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.export import exported, write_bundle
from search_spaces.outcome import Measured
from tests.orchestrator.cli.commands import command
from tests.orchestrator.export.folders import ROOT, taken_of
from tests.workers.test_same_training import reference_losses
from tests.workers.values import a_plan


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export of a plan that has recomputed blocks, with the losses of a plain loop."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    what = taken_of(a_plan(checkpoint_ratio=0.5))
    assert isinstance(what.outcome, Measured)
    told = replace(what, outcome=replace(what.outcome, losses=tuple(reference_losses())))
    write_bundle(exported(told), told, tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.slow
def test_a_folder_that_does_what_was_measured_is_verified(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing timed: the record's 20 samples/s are far below what any machine reaches here."""
    temporary = folder.with_name("tmp")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code, told = command(capsys, "verify", str(folder), "--steps", "9", "--json")

    assert code == 0, told
    result = json.loads(told)["result"]
    assert result["verified"] is True
    findings = {finding["what"]: finding for finding in result["findings"]}
    assert findings["losses"]["seen"].endswith("apart in 8 steps")
    assert findings["recomputed blocks"]["seen"] == "1 LlamaDecoderLayer"
    assert {finding["holds"] for finding in findings.values()} == {True}
    assert list(temporary.glob("torchelastic*")) == []


@pytest.mark.slow
@pytest.mark.thorough
def test_a_script_that_no_longer_does_as_the_plan_says_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = folder / "train.py"
    changed = script.read_text().replace("RECOMPUTED = (1,)", "RECOMPUTED = (0, 1)")
    assert changed != script.read_text()
    script.write_text(changed)

    code, told = command(capsys, "verify", str(folder), "--steps", "5")

    assert code == 1
    assert "recomputed blocks 1 2 LlamaDecoderLayer DIFFERS" in told
    assert "not compared, since train.py was changed not judged" in told
    assert told.endswith("differs: recomputed blocks")


def test_a_folder_of_something_else_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = command(capsys, "verify", str(tmp_path))

    assert code == 2
    assert "name a folder that plimsoll export wrote" in told
