"""Processes of this machine: those that workers left, and orphans of a Ray of our own."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping

import psutil

_END_POLL_SECONDS = 0.1
_CLOCK_SECONDS = 1.0  # by which two readings of a start may differ: it is kept in ticks since boot
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # of Linux's prctl
_END_SECONDS = 10.0  # after SIGKILL; only a process stuck in the kernel takes longer


def kill_leftovers(leaders: Mapping[int, float], seconds: float) -> tuple[int, ...]:
    """Waits for the process groups of workers on this machine to end, then kills the rest.

    Args:
        leaders: Process ids of the workers, with their start in seconds since the epoch. Others
            that have such an id for their group, but started earlier or only now, are strangers.
        seconds: Time that they have to end by themselves.

    Returns:
        The ids of processes that could not be killed.
    """
    now = time.time()
    if not _have_ended(leaders, now, seconds):
        for pid in _members(leaders, now):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        _have_ended(leaders, now, _END_SECONDS)
    return tuple(_members(leaders, now))


def _have_ended(leaders: Mapping[int, float], before: float, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(True for _ in _members(leaders, before)):
        if time.monotonic() >= until:
            return False
        time.sleep(_END_POLL_SECONDS)
    return True


def _members(leaders: Mapping[int, float], before: float) -> Iterator[int]:
    """Yields the processes of these groups that started before a time and have not ended."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            began = leaders.get(os.getpgid(process.pid))
            if began is None:
                continue
            if process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1:
                continue  # its last thread has ended, and released its GPU's memory
            if began - _CLOCK_SECONDS <= process.create_time() < before:
                yield process.pid


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Lets processes whose parents end become children of this one, instead of the system's.

    So they are found and ended with the others. Linux alone can do so.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)


def end_with_raylet() -> None:
    """Has this process, a child of Ray's raylet, killed when that one dies.

    Else a rank that was stopped or hangs keeps its GPU when Ray is gone.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def has_ended(process: psutil.Process) -> bool:
    """Returns True if a process has ended, though nobody may have asked for its exit code yet."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
