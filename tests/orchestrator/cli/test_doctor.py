"""`plimsoll doctor` on the machine that the tests run on."""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.orchestrator.cli.test_app import run
from workers.doctor import lacks, survey


def test_says_what_is_here_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") in (0, None)

    told = capsys.readouterr().out
    assert f"torch {torch.__version__}" in told
    for feature in survey("cpu"):
        assert feature.name in told
    assert "Traceback" not in told


def test_a_lack_is_a_sentence_with_its_remedy() -> None:
    for feature in survey("cpu"):
        assert feature.lack is None or len(feature.lack.split()) > 3, feature.name


def test_flash_attention_is_nothing_for_a_cpu() -> None:
    assert dict(lacks("cpu"))["flash_attention_2"].endswith("needs a CUDA device")


def test_without_a_compiler_blocks_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.delenv("CXX", raising=False)

    assert "compile" in dict(lacks("cpu"))
