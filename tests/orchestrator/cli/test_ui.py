"""`plimsoll ui`: MLflow's own pages of a sweep, by the real server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from benchmarks.rigs.mlflow_server import serves
from benchmarks.rigs.ray_head import free_port
from tests.orchestrator.cli.commands import command
from tests.orchestrator.cli.test_sync import swept

SHARED_MEMORY = Path("/dev/shm")


def test_it_shows_the_sweep_and_leaves_nothing_when_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept()
    assert command(capsys, "sync")[0] == 0
    port = free_port()
    held = set(SHARED_MEMORY.iterdir())
    shown = subprocess.Popen(
        [Path(sys.executable).with_name("plimsoll"), "ui", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 120
        while not serves(port):
            assert shown.poll() is None, shown.communicate()[0]
            assert time.monotonic() < end, "nothing answers"
            time.sleep(0.2)
        with urlopen(f"http://127.0.0.1:{port}/") as page:
            assert b"MLflow" in page.read()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shown.pid, signal.SIGKILL)
    said = shown.communicate(timeout=20)[0]

    assert f"The trials: http://127.0.0.1:{port}/#/experiments/" in said
    assert not {path for path in SHARED_MEMORY.iterdir() if path.name.startswith("tmp")} - held


def test_optuna_dashboard_serves_the_study_and_ends_at_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    swept()
    port, before = free_port(), files_in(tmp_path)
    shown = subprocess.Popen(
        [Path(sys.executable).with_name("plimsoll"), "ui", "--optuna", "--port", str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        assert shown.stdout is not None
        said = shown.stdout.readline()
        assert said.strip() == f"optuna-dashboard: http://127.0.0.1:{port}/dashboard/studies/1"
        with urlopen(f"http://127.0.0.1:{port}/api/studies/1", timeout=60) as told:
            assert len(json.load(told)["trials"]) == 3
        os.killpg(shown.pid, signal.SIGINT)
        assert shown.communicate(timeout=20)[0] == ""
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shown.pid, signal.SIGKILL)

    assert shown.returncode == 0
    assert files_in(tmp_path) == before


def test_optuna_dashboard_that_is_missing_or_has_no_port_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swept()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        taken.listen()
        code, said = command(capsys, "ui", "--optuna", "--port", port)
    assert (code, said) == (2, f"--port {port} cannot be listened on: Address already in use")

    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)  # as where it is not installed
    code, said = command(capsys, "ui", "--optuna")
    assert code == 2
    assert said == "optuna-dashboard is not installed: pip install optuna-dashboard"


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
