"""Machines that fail under a real sweep: no plan is blamed, and nothing waits for ever."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.chaos.rig import RANKS
from search_spaces.trial import Measured
from tests.orchestrator.cluster.cli import PLIMSOLL, plimsoll, records_in, write_sweep
from tests.orchestrator.event_lines import read_events
from tests.rigs.ray_head import APART, can_be_apart, environment

pytestmark = pytest.mark.thorough

# With a patience that suits a test
HASTY = """
import sys
import orchestrator.cluster.watchdog
from orchestrator.cli import main

orchestrator.cluster.watchdog.SILENT_SECONDS = 60.0
sys.argv = ["plimsoll", "tune", "sweep.yaml", "--plain"]
main()
"""
ENDED = "trial 1 ended"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sweep(
        tmp_path / "sweep.yaml",
        space={
            "data": [2],
            "zero_stage": [0, 2, 3],
            "micro_batch": [1, 2, 4],
            "checkpoint_ratio": [0.0],
        },
        objective={"max_steps": 12},
        study={"sampler": "random"},
        tracking={"enabled": False},
    )
    return tmp_path


@contextlib.contextmanager
def tuning(folder: Path, *command: str, **extra: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a sweep, and waits until its second trial has ended."""
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(folder, OMP_NUM_THREADS="1", **extra),
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            while ENDED not in said(folder) and process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
            assert process.poll() is None, said(folder)
            yield process
        finally:
            for each in (*offspring(process.pid), process):
                with contextlib.suppress(psutil.Error, ProcessLookupError):
                    each.kill()
            process.wait()


def said(folder: Path) -> str:
    return (folder / "log").read_text()


def offspring(pid: int) -> list[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).children(recursive=True)
    return []


def ranks_of(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return [one for one in offspring(process.pid) if words_of(one)[0].startswith(RANKS)]


def words_of(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):  # it has just ended, or is a zombie
        return process.cmdline() or [""]
    return [""]


def outcomes_of(folder: Path) -> list[type]:
    return [type(record.outcome) for record in records_in(folder)]


@pytest.mark.skipif(not can_be_apart(), reason="needs mounts of its own (unshare --mount)")
def test_a_full_folder_blames_no_plan_and_the_same_command_goes_on(folder: Path) -> None:
    """One rank is killed; the group that is to replace it has no room for its files."""
    temporary = Path(tempfile.mkdtemp(dir="/tmp"))  # paths of Ray's sockets have to be short
    small = [word.replace("-t tmpfs", "-t tmpfs -o size=256m") for word in APART]
    inside = [*small, str(temporary), PLIMSOLL, "tune", "sweep.yaml", "--plain"]
    with tuning(folder, *inside, TMPDIR=str(temporary), RAY_TMPDIR=str(temporary)) as process:
        seen_inside = Path(f"/proc/{process.pid}/root{temporary}")
        with (seen_inside / "filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, _free(seen_inside) - 2**20)
        ranks_of(process)[0].kill()

        assert process.wait(600) == os.EX_TEMPFAIL, said(folder)
    temporary.rmdir()
    log = said(folder)
    assert "workers fail to start with any plan" in log
    assert "make room there" in log
    assert set(outcomes_of(folder)) == {Measured}

    again = plimsoll("tune", "sweep.yaml", "--plain", "--trials", "4", folder=folder)
    assert again.returncode == 0, again.stdout + again.stderr
    assert outcomes_of(folder) == [Measured] * 4


def _free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def test_a_driver_whose_head_dies_says_so_and_is_to_be_tried_again(folder: Path) -> None:
    with tuning(folder, PLIMSOLL, "tune", "sweep.yaml", "--plain") as process:
        all_of_them = offspring(process.pid)
        (head,) = (one for one in all_of_them if "gcs_server" in one.name())
        head.kill()

        assert process.wait(600) == os.EX_TEMPFAIL, said(folder)
        assert not psutil.wait_procs(all_of_them, timeout=300)[1]
    assert "Ray's head on this machine has died, so this sweep ends" in said(folder)
    assert set(outcomes_of(folder)) == {Measured}
    journal = folder / "plimsoll-runs" / "sweep" / "journal.jsonl"
    events = [event["event"] for event in read_events(journal)]
    assert events.count("trial_ended") == events.count("trial_started")
    assert events[-1] == "sweep_ended"


def test_a_signal_while_a_sweep_is_prepared_leaves_nothing(folder: Path) -> None:
    (folder / "slow_model.py").write_text("import time\n\ndef make():\n    time.sleep(1000)\n")
    write_sweep(folder / "sweep.yaml", space={}, model={"name": "slow_model:make"})
    temporary = folder / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
        cwd=folder,
        env=environment(folder, OMP_NUM_THREADS="1", TMPDIR=str(temporary)),
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(temporary.glob("plimsoll-*")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said_to_user = process.communicate(timeout=600)

    assert process.returncode == 128 + signal.SIGTERM, said_to_user
    assert not list(temporary.glob("plimsoll-*"))


def start(folder: Path) -> subprocess.Popen[str]:
    """Starts a sweep, whose messages are read once it has ended."""
    return subprocess.Popen(
        [PLIMSOLL, "tune", "sweep.yaml", "--plain"],
        cwd=folder,
        env=environment(folder, OMP_NUM_THREADS="1"),
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("seconds", [0.0, 1.0])
def test_a_signal_while_ray_starts_leaves_none_of_its_processes(
    seconds: float, folder: Path
) -> None:
    process = start(folder)
    seen: set[psutil.Process] = set()
    begun, is_sent = None, False
    while process.poll() is None:
        seen.update(there := offspring(process.pid))
        if begun is None and any(words_of(one)[0].endswith("/raylet") for one in there):
            begun = time.monotonic()
        if begun is not None and not is_sent and time.monotonic() >= begun + seconds:
            process.send_signal(signal.SIGTERM)
            is_sent = True
        time.sleep(0.01)
    _, said_to_user = process.communicate()

    assert process.returncode == 128 + signal.SIGTERM, said_to_user
    assert "Traceback" not in said_to_user
    assert not psutil.wait_procs(seen, timeout=300)[1]


@pytest.mark.parametrize("seconds", [0.0, 2.0, 4.0])
def test_a_head_that_dies_while_ray_starts_ends_the_driver_to_be_tried_again(
    seconds: float, folder: Path
) -> None:
    process = start(folder)
    seen: set[psutil.Process] = set()
    begun, is_killed = None, False
    while process.poll() is None:
        seen.update(there := offspring(process.pid))
        (*_, head) = (None, *(one for one in there if "gcs_server" in words_of(one)[0]))
        begun = begun or (head and time.monotonic())
        if head is not None and begun and not is_killed and time.monotonic() >= begun + seconds:
            head.kill()
            is_killed = True
        time.sleep(0.01)
    _, said_to_user = process.communicate()

    assert process.returncode == os.EX_TEMPFAIL, said_to_user
    assert "Ray's head on this machine has died, so this sweep ends" in said_to_user
    assert "Traceback" not in said_to_user
    assert not psutil.wait_procs(seen, timeout=300)[1]


@pytest.mark.parametrize(("signals", "code"), [(0, os.EX_TEMPFAIL), (2, 128 + signal.SIGTERM)])
def test_a_driver_whose_head_hangs_ends_by_itself_or_by_the_second_signal(
    folder: Path, signals: int, code: int
) -> None:
    with tuning(folder, sys.executable, "-c", HASTY) as process:
        all_of_them = offspring(process.pid)
        (head,) = (one for one in all_of_them if "gcs_server" in one.name())
        head.suspend()
        for _ in range(signals):
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(3)

        assert process.wait(600) == code, said(folder)
        gone, alive = psutil.wait_procs(all_of_them, timeout=300)
        assert not alive
        assert gone
    assert ("has not answered for 60 s" in said(folder)) == (not signals)
    assert set(outcomes_of(folder)) == {Measured}
