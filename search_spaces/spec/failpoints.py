"""Failpoints: named moments before and after each step of persistence and of a group's life.

A test names one in the environment, and the process that reaches it ends there:
`PLIMSOLL_FAILPOINTS="study.close.after=kill:2"` is the second time that a trial has been closed,
by any process of the sweep. All of them count in the files of `PLIMSOLL_FAILPOINTS_FOLDER`, so
that each failpoint strikes once, however often the sweep is started again. The files also show
which failpoints were reached.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, final

VARIABLE: Final = "PLIMSOLL_FAILPOINTS"  # NAME=ACTION[:NTH], separated by blanks
FOLDER_VARIABLE: Final = "PLIMSOLL_FAILPOINTS_FOLDER"
ACTIONS: Final = ("kill", "stop", "full")  # SIGKILL, SIGSTOP, or the error of a full disk


class Step(StrEnum):
    """Steps that have failpoints: NAME.before, and NAME.after unless the step raises."""

    FILE_WRITE = "file.write"  # content of a new file beside the old one, synced
    FILE_RENAME = "file.rename"  # to the name of the old one
    LINE_APPEND = "line.append"  # to the spool, or to what is set aside; synced
    SPOOL_REMOVE = "spool.remove"  # once the study has its records
    EVENT_APPEND = "event.append"  # to the logs of events and decisions
    LOCK_TAKE = "lock.take"
    LOCK_CONFIRM = "lock.confirm"  # in each transaction, ahead of its first write
    LOCK_BEAT = "lock.beat"
    LOCK_RELEASE = "lock.release"
    STUDY_OPEN = "study.open"  # a trial
    STUDY_CLOSE = "study.close"  # a trial, with its record
    STUDY_WRITE = "study.write"  # of what closes a trial; `after` is ahead of the commit
    STUDY_FAIL = "study.fail"  # a trial without a result, or a record of an earlier driver's
    STUDY_KEEP = "study.keep"  # validations, model, provenance, the end of the sweep
    RAY_CONNECT = "ray.connect"  # to a cluster, or to a Ray that starts here
    TRIAL_SEND = "trial.send"  # by the driver, to a group
    OUTCOME_RECEIVE = "outcome.receive"  # by the driver
    GROUP_START = "group.start"  # by the process that runs a group's trials
    GROUP_RUN = "group.run"  # a trial, by the same
    GROUP_STOP = "group.stop"  # in good order
    GROUP_KILL = "group.kill"  # what is left of it
    RANK_REGISTER = "rank.register"  # a rank's process
    RANK_READY = "rank.ready"
    RANK_RUN = "rank.run"  # a trial
    RANK_POST = "rank.post"  # the outcome that the ranks agreed on


@dataclass(frozen=True, slots=True, kw_only=True)
class _Strike:
    action: str
    nth: int


def step(which: Step) -> AbstractContextManager[None]:
    """Returns the block of a step; it does nothing unless failpoints are armed."""
    return _NOTHING if _failpoints is None else _failpoints.step(which)


def arm(environment: Mapping[str, str]) -> None:
    """Arms what an environment names; nothing without a folder to count in.

    Raises:
        ValueError: If it names no failpoint or no action.
    """
    global _failpoints  # noqa: PLW0603
    folder = environment.get(FOLDER_VARIABLE)
    _failpoints = _Failpoints(Path(folder), environment.get(VARIABLE, "")) if folder else None


@final
class _Failpoints:
    """Counters of all failpoints, and what strikes at some of them."""

    def __init__(self, folder: Path, orders: str) -> None:
        self._folder = folder
        self._strikes = dict(map(_parsed, orders.split()))

    @contextlib.contextmanager
    def step(self, which: Step) -> Iterator[None]:
        self._reach(f"{which}.before")
        yield
        self._reach(f"{which}.after")

    def _reach(self, name: str) -> None:
        # the position after appending a byte is the count of all processes
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        file = os.open(self._folder / name, flags, 0o666)
        try:
            os.write(file, b".")
            count = os.lseek(file, 0, os.SEEK_CUR)
        finally:
            os.close(file)
        strike = self._strikes.get(name)
        if strike is not None and count == strike.nth:
            (self._folder / f"{name}.struck").write_text(f"{strike.action} {time.time()}")
            _act(strike.action)


def _parsed(order: str) -> tuple[str, _Strike]:
    name, _, action = order.partition("=")
    action, _, nth = action.partition(":")
    which, _, side = name.rpartition(".")
    if side not in ("before", "after") or which not in tuple(Step) or action not in ACTIONS:
        raise ValueError(f"{VARIABLE}: {order} is not NAME.before=ACTION or NAME.after=ACTION")
    return name, _Strike(action=action, nth=int(nth or 1))


def _act(action: str) -> None:
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.5)  # this thread may be the last to stop
        case _:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_NOTHING: Final = nullcontext()
_failpoints: _Failpoints | None = None
arm(os.environ)
