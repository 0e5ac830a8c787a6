"""Shell completion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli.completion import (
    FORMAT_NAMES,
    complete_example,
    complete_format,
    complete_gpu,
    complete_key,
    complete_study,
)
from orchestrator.export.formats import FORMATS
from orchestrator.workspace import save_spec
from tests.orchestrator.records import make_spec


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save_spec(make_spec(), "demo")
    ended = {"event": "trial_ended", "validation": False}
    lines = [json.dumps(ended | {"trial": number}) for number in (0, 1, 10, 2)]
    torn = '{"event": "trial_en'
    Path("plimsoll-runs/demo/events.jsonl").write_text("\n".join([*lines, torn]))
    Path("more.yaml").write_text("")


def completed(*words: str) -> list[str]:
    """Returns the completions that bash gets for the last word."""
    ended = subprocess.run(
        [sys.executable, "-c", "from orchestrator.cli import main; main()"],
        env={
            **os.environ,
            "_PLIMSOLL_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["plimsoll", *words]),
            "COMP_CWORD": str(len(words)),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ended.stderr == ""
    return ended.stdout.split()


def test_the_shell_completes_commands_and_trials() -> None:
    assert completed("exp") == ["explain", "export"]
    assert completed("explain", "demo", "--trial", "1") == ["1", "10"]


def test_studies_by_name_then_files() -> None:
    assert list(complete_study("d")) == ["demo"]
    assert list(complete_study("mo")) == ["more.yaml"]
    assert list(complete_study("plimsoll-runs/")) == ["plimsoll-runs/demo/"]
    assert list(complete_study("no/such/")) == []


def test_keys_presets_devices_formats_and_examples() -> None:
    assert list(complete_key("train.global")) == ["train.global_batch="]
    assert "model.name=gpt2" in list(complete_key("model.name=g"))
    assert any(name.startswith("H100") for name in complete_gpu("h1"))
    assert list(complete_format("tor")) == ["torchrun", "torchtitan"]
    assert list(complete_example("d")) == ["demo"]
    assert tuple(FORMATS) == FORMAT_NAMES
