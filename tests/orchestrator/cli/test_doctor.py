"""`plimsoll doctor` on the machine of the tests."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search_spaces.hardware.catalogue import find_device, known_device, load_device_file
from tests.orchestrator.cli.test_app import run
from tests.workers.probe.values import TINY
from workers.probe import config, device, rank
from workers.probe.doctor import lacks, survey


def test_says_what_is_here_and_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor") in (0, None)

    told = capsys.readouterr().out
    assert f"torch {torch.__version__}" in told
    for feature in survey("cpu"):
        assert feature.name in told
    assert "Traceback" not in told


def test_without_a_compiler_blocks_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    monkeypatch.delenv("CXX", raising=False)

    assert "compile" in dict(lacks("cpu"))


@pytest.mark.thorough
@pytest.mark.slow
def test_a_probe_writes_a_device_that_forecasts_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(config, "default_config", lambda: TINY)

    assert run("doctor", "--probe", "--drive", tmp_path) in (0, None)

    told = " ".join(capsys.readouterr().out.split())
    path = tmp_path / "plimsoll" / "devices" / "cpu.yaml"
    found = find_device("cpu")
    assert found.measured
    assert found in load_device_file(path)
    assert not known_device("cpu").measured
    assert f"the rates of cpu are in {path}" in told


def test_where_a_probe_writes_needs_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--out", "x.yaml") == 2
    assert "add --probe" in capsys.readouterr().err


def test_a_probe_at_lowered_clocks_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    throttled = replace(known_device("cpu"), matmul_throttles=("power cap",))
    monkeypatch.setattr(rank, "probe_ranks", lambda *_, **__: None)
    monkeypatch.setattr(device, "describe", lambda *_: throttled)

    assert run("doctor", "--probe", "--out", tmp_path / "cpu.yaml") in (0, None)
    assert "clocks were lowered while matmuls ran: power cap" in capsys.readouterr().out
