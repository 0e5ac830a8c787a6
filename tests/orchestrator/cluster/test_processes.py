"""Cleanup of leftover processes, with real ones."""

import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from orchestrator.cluster.processes import kill_leftovers

BEGAN = time.time() - 1  # before any of them
# Forks a child as loader processes are forked, says its id, and leaves or stays
FORKS = """
import os, sys, time
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(float(sys.argv[1]))
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Leaders of process groups, which are killed after the test."""
    all_of_them: list[subprocess.Popen[str]] = []
    yield all_of_them
    for process in all_of_them:
        if psutil.pid_exists(process.pid):
            process.kill()
            process.wait()
        assert process.stdout is not None
        process.stdout.close()


# A leader whose first thread has ended, as that of a killed process may while others free memory
HALF_ENDED = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def leader(started: list[subprocess.Popen[str]], stays: float) -> tuple[int, int]:
    """Starts a process group; returns the ids of its leader and its child."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, str(stays)],
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    started.append(process)
    assert process.stdout is not None
    return process.pid, int(process.stdout.readline())


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_child_that_outlives_its_leader_is_ended(started: list[subprocess.Popen[str]]) -> None:
    pid, child = leader(started, 0)
    started[0].wait(600)
    assert runs(child)

    assert kill_leftovers({pid: BEGAN}, 0.2) == ()
    assert not runs(child)


def test_a_zombie_with_threads_is_ended(started: list[subprocess.Popen[str]]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HALF_ENDED], stdout=subprocess.PIPE, text=True, process_group=0
    )
    started.append(process)
    assert process.stdout is not None
    process.stdout.readline()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)

    assert kill_leftovers({process.pid: BEGAN}, 0.2) == ()
    assert psutil.Process(process.pid).num_threads() == 1


def test_other_groups_and_later_processes_are_left_alone(
    started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, _ = leader(started, 600)
    other, others_child = leader(started, 600)
    assert kill_leftovers({pid: BEGAN}, 0.2) == ()
    assert runs(other)
    assert runs(others_child)

    # asked before they were started, as if they had been given the ids of some that are gone
    monkeypatch.setattr(time, "time", lambda: psutil.Process(other).create_time() - 1)
    assert kill_leftovers({other: BEGAN}, 0.2) == ()
    assert runs(other)
    psutil.Process(others_child).kill()
