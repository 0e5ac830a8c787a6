"""`plimsoll ui`: MLflow's real server, as its page and as the tracking server of other sweeps.

One server for all tests of the file, since it takes seconds to start.
"""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from orchestrator.tracking.mlflow_reachability import check_tracking
from orchestrator.tracking.mlflow_view import sweep_pages
from orchestrator.workspace import save_spec
from tests.orchestrator.records import make_records, make_space, make_spec
from tests.orchestrator.tracking.test_mlflow import log
from tests.orchestrator.tracking.test_mlflow_shared import (
    logged,
    runs_of,
    shared,
    trials_of,
    wait_for,
)
from tests.outcomes import make_measured
from tests.proxies import proxy_to
from tests.rigs.mlflow_server import serves
from tests.rigs.ports import free_port

SHARED_MEMORY = Path("/dev/shm")
SECRET = "hunter2-and-more"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A running `plimsoll ui`."""

    process: subprocess.Popen[str]
    folder: Path
    port: int
    shared_memory: frozenset[Path]  # that was there before


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory, mlflow_store: Callable[[Path], None]
) -> Iterator[Shown]:
    """The pages of a sweep of one trial, the latest of its folder."""
    folder, port = tmp_path_factory.mktemp("ui"), free_port()
    mlflow_store(folder / "plimsoll-runs")
    spec = make_spec(study={"folder": str(folder / "plimsoll-runs")})
    save_spec(spec, "demo")
    log(spec, make_records(make_space(spec), [make_measured(20.0)]), study="demo")
    held = frozenset(SHARED_MEMORY.iterdir())
    process = subprocess.Popen(
        [Path(sys.executable).with_name("plimsoll"), "ui", "--port", str(port)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        end = time.monotonic() + 800
        while not serves(port):
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < end, "nothing answers"
            time.sleep(0.2)
        yield Shown(process=process, folder=folder, port=port, shared_memory=held)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=600)


def test_it_shows_mlflows_page(shown: Shown) -> None:
    with urlopen(f"http://127.0.0.1:{shown.port}/") as page:
        assert b"MLflow" in page.read()


def test_a_server_that_goes_and_comes_back_holds_every_trial_once(
    shown: Shown,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reply is lost, then the server; missing trials are logged when it is back."""
    for pause in ("FACTOR", "JITTER"):  # between MLflow's own attempts, of which there are three
        monkeypatch.setenv(f"MLFLOW_HTTP_REQUEST_BACKOFF_{pause}", "0")
    with proxy_to(shown.port) as line:
        uri = f"http://ann:{SECRET}@127.0.0.1:{line.port}"
        spec = shared(uri, str(tmp_path / "runs"))
        check_tracking(spec)
        line.swallow(b"runs/create", 2)

        def between(ended: int) -> None:
            if ended == 2:
                wait_for(lambda: len(trials_of(uri, "goes-on")) >= 1)
                line.leave()
            if ended == 4:
                line.come_back()

        listener = logged(spec, "goes-on", between)

        assert line.swallowed == 1
        assert listener.problem is None
        pages = sweep_pages(spec, "goes-on")
        assert pages.trials.startswith(f"http://ann@127.0.0.1:{line.port}/#/experiments/")
        assert pages.sweep is not None
        assert capsys.readouterr().out == ""  # there a view is, or lines of JSON
        assert trials_of(uri, "goes-on") == ["0", "1", "2", "3", "4"]
        runs = runs_of(uri, "goes-on")
        assert len(runs) == 6
        assert {run.info.status for run in runs} == {"FINISHED"}


def test_nothing_that_mlflow_keeps_holds_a_password(shown: Shown) -> None:
    """The address of the previous test's sweep had a password."""
    with closing(sqlite3.connect(shown.folder / "plimsoll-runs" / "mlflow.db")) as file:
        rows = list(file.iterdump())
    artifacts = [
        path.read_text(errors="replace")
        for path in (shown.folder / "plimsoll-runs" / "mlartifacts").rglob("*")
        if path.is_file()
    ]

    assert any("goes-on" in row for row in rows)
    assert any("uri: http://ann@127.0.0.1" in text for text in artifacts)
    assert not [text for text in (*rows, *artifacts) if SECRET in text]


@pytest.mark.slow
@pytest.mark.thorough
def test_ctrl_c_ends_it_quietly(shown: Shown) -> None:
    port = free_port()
    with subprocess.Popen(
        [Path(sys.executable).with_name("plimsoll"), "ui", "--port", str(port)],
        cwd=shown.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as second:
        wait_for(lambda: serves(port))
        os.killpg(second.pid, signal.SIGINT)
        said, _ = second.communicate(timeout=600)

    assert second.returncode == 0
    assert "Traceback" not in said
    assert "Aborted" not in said
    assert not serves(port)


def test_it_leaves_nothing_when_it_is_killed(shown: Shown) -> None:
    """Must be the last test of the server, which it kills."""
    os.killpg(shown.process.pid, signal.SIGKILL)
    said = shown.process.communicate(timeout=600)[0]

    assert f"All trials: http://127.0.0.1:{shown.port}/#/experiments/" in said
    assert f"Best plan: http://127.0.0.1:{shown.port}/#/experiments/" in said
    left = {path for path in SHARED_MEMORY.iterdir() if path.name.startswith("tmp")}
    assert not left - shown.shared_memory
