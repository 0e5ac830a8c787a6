"""A sweep's processes, as its faults find them."""

import contextlib
import json
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil

from benchmarks.chaos.settings import Setting, Tracking
from tests.rigs.machine import Machine
from tests.rigs.postgres import Server

RANKS = "ray::RayTrainWorker"
ACTORS = (  # of a group, and the queue that all groups have
    *("ray::GroupChannel", "ray::ResourceTrainable", "ray::GroupQueues"),
    *("ray::TrainController", "ray::SynchronizationActor"),
)


MESSAGES = "driver.err"  # file of what drivers print to stderr
JOURNAL = "journal.jsonl"  # and of what ranks measured
_LOG = "driver.log"


class Mark(NamedTuple):
    """Number of events that drivers had told, and of lines that ranks had written."""

    events: int
    lines: int


@dataclass
class Rig:
    """One sweep: where it is kept, its drivers, and what they said."""

    folder: Path
    setting: Setting
    command: Sequence[str]  # of a driver
    environ: Mapping[str, str]
    events: list[dict[str, Any]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # lines that are no events
    troubles: list[str] = field(default_factory=list)  # that a fault noticed
    descriptors: int | None = None  # that the next driver may open
    # of which the study knows no more
    forgotten: list[tuple[Mark, Mark]] = field(default_factory=list)
    _drivers: list[subprocess.Popen[str]] = field(default_factory=list)
    _begun_before: int = 0  # sweeps, when the driver of the moment was started

    @property
    def driver(self) -> subprocess.Popen[str]:
        """The driver of the moment."""
        return self._drivers[-1]

    @property
    def postgres(self) -> Server:
        """The database, of a sweep that has a server."""
        assert self.setting.postgres is not None
        return self.setting.postgres

    @property
    def tracking(self) -> Tracking:
        """The MLflow server, of a sweep that has one."""
        assert self.setting.tracking is not None
        return self.setting.tracking

    @property
    def machine(self) -> Machine:
        """The machine, of a sweep that has one of its own."""
        assert self.setting.machine is not None
        return self.setting.machine

    def start(self) -> None:
        """Starts a driver, and keeps what it says, from a thread of its own."""
        limit = [] if self.descriptors is None else ["prlimit", f"--nofile={self.descriptors}"]
        self.descriptors = None
        self._begun_before = self.count("sweep_started")
        self._drivers.append(self._started([*limit, *self.command], subprocess.PIPE))
        threading.Thread(target=self._read, args=(self.driver,), daemon=True).start()

    def another_driver(self) -> subprocess.Popen[str]:
        """Starts one beside the driver of the moment; what it says is in the driver's log."""
        with (self.folder / _LOG).open("a") as log:
            return self._started(self.command, log)

    def _started(self, command: Sequence[str], stdout: int | IO[str]) -> subprocess.Popen[str]:
        with (self.folder / MESSAGES).open("a") as messages:  # would cut lines of events in two
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.environ, **self.setting.environ},
                stdout=stdout,
                stderr=messages,
                text=True,
                start_new_session=True,
            )

    def mark(self) -> Mark:
        """Returns how much was said and written down until now."""
        journal = self.folder / JOURNAL
        lines = journal.read_text().count("\n") if journal.exists() else 0
        return Mark(len(self.events), lines)

    def forget(self, since: Mark) -> None:
        """Notes that the study knows nothing of what was said and written since."""
        self.forgotten.append((since, self.mark()))

    def shared_memory(self) -> set[str]:
        """Returns the names in shared memory that the sweep's processes use at this moment."""
        found: set[str] = set()
        for process in self.processes():
            with contextlib.suppress(OSError):  # gone by now
                maps = Path("/proc", str(process.pid), "maps").read_text()
                found.update(re.findall(r"/dev/shm/(\S+)", maps))
        return found

    def of_ray(self, name: str) -> list[psutil.Process]:
        """Returns Ray's own processes of that program."""
        found = []
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.name() == name:
                    found.append(process)
        return found

    def processes(self, titles: str | tuple[str, ...] = "") -> list[psutil.Process]:
        """Those of the sweep that run and whose titles begin so, or in one of several ways.

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
                if not self.setting.is_server(process) and title.startswith(titles):
                    found.append(process)
        return found

    def _is_inside(self, pid: int) -> bool:
        for name in ("cwd", "fd/1", "fd/2"):
            with contextlib.suppress(OSError):  # closed, or gone by now
                if Path("/proc", str(pid), name).readlink().is_relative_to(self.folder):
                    return True
        return False

    def has_begun(self) -> bool:
        """Returns whether the driver of the moment has the study, and its sweep has begun."""
        return self.count("sweep_started") > self._begun_before

    def listens(self) -> bool:
        """Returns whether the driver of the moment handles SIGTERM: its Python is up."""
        status = Path(f"/proc/{self.driver.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return bool(caught >> (signal.SIGTERM - 1) & 1)

    def count(self, kind: str) -> int:
        """Returns how many events of a kind drivers have told."""
        return sum(event["event"] == kind for event in self.events)

    def _read(self, driver: subprocess.Popen[str]) -> None:
        assert driver.stdout is not None
        with (self.folder / _LOG).open("a") as log:
            for line in driver.stdout:
                log.write(line)
                log.flush()
                try:
                    self.events.append(json.loads(line))
                except ValueError:
                    self.said.append(line.rstrip())

    def wait_gone(self, seconds: float) -> list[psutil.Process]:
        """Waits until the sweep is gone; returns the processes left after these seconds."""
        until = time.monotonic() + seconds
        while left := self.processes():
            if time.monotonic() > until:
                return left
            time.sleep(0.2)
        return []


def signal_one(
    rig: Rig, draw: random.Random, signum: signal.Signals, titles: str | tuple[str, ...]
) -> bool:
    """Signals one of the processes with such titles; False if there is none."""
    found = rig.processes(titles)
    return bool(found) and send([draw.choice(found)], signum) > 0


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
