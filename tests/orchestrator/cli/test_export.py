"""`plimsoll export` on a study that is there."""

import json
from pathlib import Path
from typing import get_args

import pytest

from orchestrator.export.formats import FORMATS
from search_spaces.settings.trainers import trainer_table
from search_spaces.specification.schema import TrainerName
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.test_sync import swept
from tests.workers.values import LLAMA


def test_the_answer_is_written_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept(model=LLAMA)  # trial 1 ran out of memory, trial 2 is best

    code, told = command(capsys, "export")

    assert code == 0, told
    assert "demo-torchrun: trial 2 of demo. Start it with: torchrun --nproc-per-node 2" in told
    assert told.endswith(" demo-torchrun/train.py")
    kept = json.loads((tmp_path / "demo-torchrun" / "plimsoll.json").read_text())
    assert (kept["trial"], kept["validated"]) == (2, False)
    assert kept["samples_per_second"]["value"] == 39.5
    assert {file.name for file in (tmp_path / "demo-torchrun").iterdir()} == {
        *("README.md", "plimsoll.json", "spec.yaml", "train.py")
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--trial", "1"), "trial 1 of study demo ended with out of memory"),
        (("--trial", "7"), "no finished trial 7: its trials are 0 to 2"),
        (("--format", "yaml"), "the formats are torchrun, deepspeed"),
        (("--format", "deepspeed"), "engine is torch; torchrun, "),
    ],
)
def test_what_cannot_be_exported_is_one_sentence(
    options: tuple[str, ...],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    swept(model=LLAMA)
    before = sorted(tmp_path.rglob("*"))

    code, told = command(capsys, "export", *options)

    assert code == 2
    assert words in told
    assert sorted(tmp_path.rglob("*")) == before


def test_the_names_in_help_are_those_of_the_formats() -> None:
    assert ("own", *FORMATS) == ("own", *trainer_table()) == get_args(TrainerName)
