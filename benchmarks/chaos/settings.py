"""Machine and storage of a sweep: SQLite, small disks, PostgreSQL, MLflow, a cluster.

In one of them the ranks talk over a backend with NCCL's manners (`tests/rigs/stubborn.py`).
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.rigs import stubborn
from tests.rigs.machine import Machine
from tests.rigs.mlflow_server import serves, start_mlflow_server
from tests.rigs.ports import free_port
from tests.rigs.postgres import Server, postgres_server
from tests.rigs.web_answers import Answer, answering

SETTINGS = ("sqlite", "postgres", "mlflow", "disk", "machine", "unwoken")
_SITE = Path(stubborn.__file__).with_name("stubborn_site")
_SIZE_MIB = 24  # of the study's disk that can be full
_TEMPORARY = "size=512m,nr_inodes=30000"  # the disk of Ray's files
_SHARED = "size=512m"  # shared memory
_SERVER_SECONDS = 120.0  # for a server to answer, on a busy machine


@dataclass
class Tracking:
    """An MLflow server that can be killed, stopped and started again under the same address."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """The address that a specification names."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts it; returns when it answers."""
        store = f"sqlite:///{self.folder}/tracking.db"
        self.process = start_mlflow_server(store, self.port, self.folder)
        until = time.monotonic() + _SERVER_SECONDS
        while not serves(self.port):
            if time.monotonic() > until:
                raise RuntimeError(f"no MLflow server after {_SERVER_SECONDS:.0f} s")
            time.sleep(0.5)

    @contextlib.contextmanager
    def replaced(self, answer: Answer) -> Iterator[None]:
        """Lets something else answer under its address, which it has back afterwards."""
        self.send(signal.SIGKILL)
        with answering(self.port, answer):
            yield
        self.start()

    def send(self, signum: signal.Signals) -> None:
        """Signals all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signum)
        if signum == signal.SIGKILL:
            self.process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Machine and storage of a sweep; None where it has none."""

    name: str
    storage: str  # URL of the study's database
    runs: Path  # folder of the study's files
    postgres: Server | None = None
    tracking: Tracking | None = None
    machine: Machine | None = None
    site: Path | None = None  # a folder of distributions that Python finds there too

    @property
    def environ(self) -> dict[str, str]:
        """Environment of its drivers, beyond that of all sweeps."""
        if self.machine is not None:
            return self.machine.environ
        if self.site is not None:
            return {"PYTHONPATH": f"{Path(__file__).parents[2]}:{self.site}"}
        return {}

    def is_server(self, process: psutil.Process) -> bool:
        """Returns whether a process is a server's, which outlives the sweep."""
        servers = (self.postgres, self.tracking)
        leaders = {one.process.pid for one in servers if one is not None and one.process}
        return not leaders.isdisjoint({process.pid, *(above.pid for above in process.parents())})


@contextlib.contextmanager
def setting(name: str, folder: Path) -> Iterator[Setting]:
    """One of `SETTINGS`, for the length of the block.

    Raises:
        CalledProcessError: If it is `disk`, and this machine lets nobody mount.
    """
    here, runs = f"sqlite:///{folder}/study.db", folder / "runs"
    with contextlib.ExitStack() as stack:
        match name:
            case "disk":
                disk = folder / "disk"
                _alone_with_mounts()
                for at, size in ((disk, f"size={_SIZE_MIB}m"), (folder / "tmp", _TEMPORARY)):
                    at.mkdir()
                    stack.enter_context(_mounted(at, size))
                stack.enter_context(_mounted(Path("/dev/shm"), _SHARED))
                yield Setting(name=name, storage=f"sqlite:///{disk}/study.db", runs=runs)
            case "postgres":
                server = stack.enter_context(postgres_server())
                yield Setting(name=name, storage=server.new_database(), runs=runs, postgres=server)
            case "mlflow":
                tracking = Tracking(folder)
                tracking.start()
                stack.callback(tracking.send, signal.SIGKILL)
                yield Setting(name=name, storage=here, runs=runs, tracking=tracking)
            case "machine":
                disk = folder / "disk"
                machine = Machine.made(folder / "machine", disk)
                storage, runs = f"sqlite:///{disk}/study.db", disk / "runs"
                yield Setting(name=name, storage=storage, runs=runs, machine=machine)
            case "unwoken":
                yield Setting(name=name, storage=here, runs=runs, site=_SITE)
            case _:
                yield Setting(name=name, storage=here, runs=runs)


def _alone_with_mounts() -> None:
    """Takes this process out of the machine's table of mounts, for good."""
    new_namespace = 0x00020000  # CLONE_NEWNS
    if ctypes.CDLL(None, use_errno=True).unshare(new_namespace):
        raise OSError(ctypes.get_errno(), "no mounts of its own")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


@contextlib.contextmanager
def _mounted(at: Path, size: str) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=False)
