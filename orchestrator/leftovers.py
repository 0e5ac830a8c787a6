"""Processes of workers that were told to go: awaited, and ended if they do not.

Ray starts each worker as the leader of a process group of its own, so that what it forked (loader
processes, compilers) is found when the worker itself is gone and others have adopted it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator

import psutil

_POLL_SECONDS = 0.1
_END_SECONDS = 10.0  # after SIGKILL; longer only in the kernel, as with a dead disk or driver


def end_left_overs(leaders: Collection[int], seconds: float) -> tuple[int, ...]:
    """Waits for the process groups of workers on this machine to end, then kills what is left.

    Args:
        leaders: Process ids of workers. What is started from now on is none of theirs, though it
            may be given the same ids.
        seconds: How long they may take by themselves.

    Returns:
        Those that are still there, even so.
    """
    now = time.time()
    if not _awaited(leaders, now, seconds):
        for pid in _members(leaders, now):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        _awaited(leaders, now, _END_SECONDS)
    return tuple(_members(leaders, now))


def _awaited(leaders: Collection[int], before: float, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while any(True for _ in _members(leaders, before)):
        if time.monotonic() >= until:
            return False
        time.sleep(_POLL_SECONDS)
    return True


def _members(leaders: Collection[int], before: float) -> Iterator[int]:
    """Processes of these groups that were started before, and run or could."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) not in leaders:
                continue
            if process.create_time() < before and process.status() != psutil.STATUS_ZOMBIE:
                yield process.pid
