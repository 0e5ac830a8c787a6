"""`plimsoll verify` on exported folders, run for real on two ranks."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured
from tests.orchestrator.cli.commands import command
from tests.orchestrator.export.folders import ROOT, taken_of
from tests.workers.values import a_plan, a_spec
from workers.api import Reference


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export of a plan with recomputed blocks and copied data; its project is deleted."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    monkeypatch.chdir(project)
    words = [f"sample {number} has {'words ' * (number % 7)}" for number in range(40)]
    (project / "data" / "text.txt").write_text("\n\n".join(words))
    spec = a_spec(data={"files": ["data/text.txt"], "lengths": {}})
    rows = {"batching": "grouped", "pad_multiple": 8}
    what = taken_of(a_plan(checkpoint_ratio=0.5, bucket_mib=1, **rows), spec=spec)
    assert isinstance(what.outcome, Measured)
    told = replace(what, outcome=replace(what.outcome, losses=tuple(plain_losses(spec))))
    write_bundle(export_bundle(told), told, project / "out")
    (project / "out").rename(tmp_path / "moved")
    shutil.rmtree(project / "data")
    return tmp_path / "moved"


def plain_losses(spec: SweepSpec) -> list[float]:
    """Returns the losses of a plain loop in one process, without its first step."""
    reference = Reference(spec, a_plan(data=1, micro_batch=8))
    module, _ = reference.model()
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=spec.train.learning_rate, weight_decay=spec.train.weight_decay
    )
    losses = []
    for _, ((inputs, _),) in zip(range(9), reference.steps(0), strict=False):
        loss = module(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses[1:]


@pytest.mark.slow
def test_a_folder_that_does_what_was_measured_is_verified(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Speed always passes: every machine exceeds the record's 20 samples/s."""
    temporary = folder.with_name("tmp")
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    code, told = command(capsys, "verify", str(folder), "--steps", "9", "--json")

    assert code == 0, told
    result = json.JSONDecoder().raw_decode(told)[0]["result"]  # before what stderr says
    assert result["verified"] is True
    findings = {finding["check"]: finding for finding in result["findings"]}
    assert findings["losses"]["observed"].endswith("apart in 8 steps")
    assert findings["recomputed blocks"]["observed"] == "1 LlamaDecoderLayer"
    assert findings["row width"]["expected"] == "a multiple of 8 tokens"
    assert {finding["passed"] for finding in findings.values()} == {True}
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
    assert "not compared: train.py was changed not checked" in told
    assert told.endswith("differs: recomputed blocks")


def test_a_folder_of_something_else_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = command(capsys, "verify", str(tmp_path))

    assert code == 2
    assert "name a folder that plimsoll export wrote" in told
