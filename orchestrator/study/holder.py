"""Holder of a study's lock: the process that a row of the database names, and whether it lives."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import Enum, auto
from pathlib import Path
from uuid import uuid4

from orchestrator.study.storage import process_name

_PROC = Path("/proc")
_BOOT = _PROC / "sys/kernel/random/boot_id"
_STOPPED, _ENDED = "Tt", "ZXx"  # states in /proc/PID/stat
_START_FIELD = 19  # of those after the name: ticks since boot, which no clock changes


class Life(Enum):
    """State of a process as far as this machine can tell."""

    RUNNING = auto()
    ENDED = auto()
    UNKNOWN = auto()  # stopped by a signal, on another machine, or in another container


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Driver that holds a study's lock, or that held it last.

    Attributes:
        token: Fencing token, which each write compares; empty once the lock was released.
        name: The process for messages.
        boot: Id of the running kernel; empty where the system has none.
        namespace: Namespace in which the process id counts.
        pid: The process id.
        started: When the process started, in clock ticks since boot.
        inode: Of the SQLite file; None for a server. A copy of the file has another one.
    """

    token: str
    name: str
    boot: str
    namespace: str
    pid: int
    started: str
    inode: int | None

    def to_json(self) -> str:
        """Returns the value of the row, the same text for the same holder."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, content: str | None) -> Holder | None:
        """Returns the holder in a row; None if there is none that can be read."""
        if content is None:
            return None
        try:
            return cls(**json.loads(content))
        except (ValueError, TypeError):
            return None

    def locks(self, inode: int | None) -> bool:
        """Returns True if the lock is that of this file, and not released."""
        return bool(self.token) and self.inode == inode

    def life(self) -> Life:
        """Returns whether the process runs, if it is one of this machine and container."""
        if not self.boot or (self.boot, self.namespace) != _machine():
            return Life.UNKNOWN
        state, started = _process(self.pid)
        if started != self.started or state in _ENDED:
            return Life.ENDED
        return Life.UNKNOWN if state in _STOPPED else Life.RUNNING


def this_process(inode: int | None) -> Holder:
    """Returns this process as a holder with a new token."""
    boot, namespace = _machine()
    return Holder(
        token=uuid4().hex,
        name=process_name(),
        boot=boot,
        namespace=namespace,
        pid=os.getpid(),
        started=_process(os.getpid())[1],
        inode=inode,
    )


def _machine() -> tuple[str, str]:
    try:
        return _BOOT.read_text().strip(), str((_PROC / "self/ns/pid").readlink())
    except OSError:  # not Linux: every other process may live
        return "", ""


def _process(pid: int) -> tuple[str, str]:
    """Returns state and start of a process; empty if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return "", ""
    fields = text.rpartition(")")[2].split()
    return fields[0], fields[_START_FIELD]
