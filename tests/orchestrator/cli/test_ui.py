"""`plimsoll ui`: MLflow's own pages of a sweep, by the real server."""

from __future__ import annotations

import contextlib
import os
import signal
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
