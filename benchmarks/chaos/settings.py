"""What a sweep is kept in and runs on: SQLite, a small disk, PostgreSQL, MLflow, nodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.chaos.nodes import Nodes, two_nodes
from benchmarks.rigs.mlflow_server import serves, start_mlflow_server
from benchmarks.rigs.postgres import Server, free_port, postgres_server

SETTINGS = ("sqlite", "postgres", "mlflow", "disk", "nodes")
_SIZE_MIB = 24  # of the disk that can be full
_SERVER_SECONDS = 120.0  # for a server to answer, on a busy machine


@dataclass
class Tracking:
    """An MLflow server that can be killed, stopped and started again under the same address."""

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        """What a specification names it by."""
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

    def send(self, signum: signal.Signals) -> None:
        """Signals all of its processes."""
        assert self.process is not None
        os.killpg(self.process.pid, signum)
        if signum == signal.SIGKILL:
            self.process.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where a sweep keeps what it has, and runs; without servers and nodes where it has none."""

    name: str
    storage: str  # URL of the study's database
    postgres: Server | None = None
    tracking: Tracking | None = None
    nodes: Nodes | None = None

    def is_server(self, process: psutil.Process) -> bool:
        """Whether a process is of what outlives the sweep: a server's, or a node's own."""
        servers = (self.postgres, self.tracking)
        leaders = {one.process.pid for one in servers if one is not None and one.process}
        if not leaders.isdisjoint({process.pid, *(above.pid for above in process.parents())}):
            return True
        return self.nodes is not None and self.nodes.is_own(process)


@contextlib.contextmanager
def setting(name: str, folder: Path) -> Iterator[Setting]:
    """One of `SETTINGS`, for the length of the block.

    Raises:
        CalledProcessError: If it is `disk` or `nodes`, and this machine lets nobody mount.
    """
    here = f"sqlite:///{folder}/study.db"
    with contextlib.ExitStack() as stack:
        match name:
            case "disk":
                disk = folder / "disk"
                disk.mkdir()
                options = ["-o", f"size={_SIZE_MIB}m", "tmpfs", str(disk)]
                subprocess.run(["mount", "-t", "tmpfs", *options], check=True)
                leave = ["umount", "--lazy", str(disk)]
                stack.callback(subprocess.run, leave, check=False)
                yield Setting(name=name, storage=f"sqlite:///{disk}/study.db")
            case "postgres":
                server = stack.enter_context(postgres_server())
                yield Setting(name=name, storage=server.new_database(), postgres=server)
            case "mlflow":
                tracking = Tracking(folder)
                tracking.start()
                stack.callback(tracking.send, signal.SIGKILL)
                yield Setting(name=name, storage=here, tracking=tracking)
            case "nodes":
                yield Setting(name=name, storage=here, nodes=stack.enter_context(two_nodes(folder)))
            case _:
                yield Setting(name=name, storage=here)
