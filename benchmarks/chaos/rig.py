"""A sweep's processes, as its faults find them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.settings import Setting

RANKS = "ray::RayTrainWorker"
ACTORS = (  # of a group, and the queue that all groups have
    *("ray::GroupChannel", "ray::ResourceTrainable", "ray::GroupQueues"),
    *("ray::TrainController", "ray::SynchronizationActor"),
)


@dataclass
class Rig:
    """One sweep: where it is kept, its driver of the moment, and what that said."""

    folder: Path
    driver: subprocess.Popen[str]
    setting: Setting
    events: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # lines that are no events

    def processes(self, *titles: str) -> list[psutil.Process]:
        """Those of the sweep that run and whose titles begin so; all, if none is given.

        They are known by where they are and where they write: parents are no help, since Ray's
        processes and what they fork outlive theirs, and a process that were made the parent of
        such orphans would keep Ray's workers from noticing that their raylet is gone.
        """
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, OSError):
                if process.status() == psutil.STATUS_ZOMBIE or not self._is_inside(process.pid):
                    continue
                title = " ".join(process.cmdline())
                if not self.setting.is_server(process) and title.startswith(titles or ("",)):
                    found.append(process)
        return found

    def _is_inside(self, pid: int) -> bool:
        for name in ("cwd", "fd/1", "fd/2"):
            with contextlib.suppress(OSError):  # closed, or gone by now
                if Path("/proc", str(pid), name).readlink().is_relative_to(self.folder):
                    return True
        return False

    def trials_started(self) -> int:
        """Trials that were handed out so far, by all drivers."""
        return sum(event["event"] == "trial_started" for event in self.events)

    def listen(self) -> threading.Thread:
        """Keeps what the driver says, from a thread of its own."""
        reader = threading.Thread(target=self._read, args=(self.driver,), daemon=True)
        reader.start()
        return reader

    def _read(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        with (self.folder / "driver.log").open("a") as log:
            for line in driver.stdout:
                log.write(line)
                log.flush()
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.said.append(line.rstrip())

    def wait_gone(self, seconds: float) -> list[psutil.Process]:
        """What of the sweep is left after so long at most."""
        until = time.monotonic() + seconds
        while left := self.processes():
            if time.monotonic() > until:
                return left
            time.sleep(0.2)
        return []


def send(processes: list[psutil.Process], signum: signal.Signals) -> int:
    """Signals them; how many there were."""
    sent = 0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signum)
            sent += 1
    return sent


@contextlib.contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    """A process that does nothing for the while."""
    process.suspend()
    try:
        yield
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
