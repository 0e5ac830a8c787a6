"""`plimsoll verify` on exported folders, run for real on two ranks."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orchestrator.export.bundle import write_bundle
from orchestrator.export.formats import export_bundle
from orchestrator.export.side_by_side import compared_again
from search_spaces.settings.export_manifest import EXPORTED_FILE, ExportManifest
from search_spaces.specification.schema import SweepSpec
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
    spec = a_spec(data={"files": ["data/text.txt"], "lengths": {}}, train={"grad_clip": 0.5})
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
    reference = Reference(spec, a_plan(data=1, micro_batch=8), None)
    module, _ = reference.model()
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=spec.train.learning_rate, weight_decay=spec.train.weight_decay
    )
    losses = []
    for _, ((inputs, _),) in zip(range(9), reference.steps(0), strict=False):
        loss = module(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
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


def edit(script: Path, *edits: tuple[str, str]) -> None:
    text = script.read_text()
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    script.write_text(text)


@pytest.mark.slow
@pytest.mark.thorough
def test_a_script_that_no_longer_does_as_the_plan_says_differs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(
        folder / "train.py",
        ("RECOMPUTED = (1,)", "RECOMPUTED = (0, 1)"),
        ("loss * RANKS", "loss"),
        ("max_norm=0.5", "max_norm=5000"),
        ('"learning_rate": 0.003', '"learning_rate": 0.03'),
    )

    code, told = command(capsys, "verify", str(folder), "--steps", "5", "--settings-only")

    assert code == 1
    assert "recomputed blocks 1 2 LlamaDecoderLayer DIFFERS" in told
    assert "loss weight 1.0 0.5 DIFFERS" in told
    assert "0.003, constant 0.03 in step 0, not 0.003 DIFFERS" in told
    changes = "recomputed blocks, loss weight, gradient clipping, learning rate"
    assert told.endswith(f"differs: {changes}")


def test_a_folder_without_its_data_has_no_trial_of_now(folder: Path) -> None:
    shutil.rmtree(folder / "inputs")

    again = compared_again(ExportManifest.read(folder), folder, steps=5, seconds=60)

    assert again is None


SLEEPS = "optimizer.step(); time.sleep({seconds})"


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(("seconds", "passed"), [(0.0, True), (3.0, False)])
def test_a_folder_slower_than_its_record_is_compared_with_trials_of_now(
    seconds: float, passed: bool, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The record is of a machine that was a thousand times as fast."""
    record = json.loads((folder / EXPORTED_FILE).read_text())
    record["samples_per_second"] = {"value": 2e4, "low": 2e4, "high": 2e4}
    (folder / EXPORTED_FILE).write_text(json.dumps(record))
    edit(folder / "train.py", ("optimizer.step()", SLEEPS.format(seconds=seconds)))

    _, told = command(capsys, "verify", str(folder), "--steps", "9", "--json")

    result = json.JSONDecoder().raw_decode(told)[0]["result"]
    (speed,) = (one for one in result["findings"] if one["check"] == "samples/s")
    assert speed["expected"].endswith(", measured in turn")
    assert speed["passed"] is passed, speed


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        ((), 1, "not verified: losses were not compared, because train.py was changed"),
        (("--settings-only",), 0, "settings match; losses were not compared"),
    ],
)
def test_with_other_data_the_settings_can_be_checked(
    options: tuple[str, ...],
    code: int,
    words: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    steps = "Reference.here(__file__).steps(rank)"
    other = f"batches = {steps}\n    next(batches)\n    return batches"
    edit(folder / "train.py", (f"return {steps}", other))

    ended, told = command(capsys, "verify", str(folder), "--steps", "9", *options)

    assert ended == code, told
    assert "DIFFERS" not in told
    assert told.endswith(words)


def test_a_folder_of_something_else_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = command(capsys, "verify", str(tmp_path))

    assert code == 2
    assert "name a folder that plimsoll export wrote" in told
