"""A Ray head of one's own, with job server and, where asked, token authentication; and nodes.

Ends only what it started: `ray stop` would end every Ray on the machine.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.rigs.ports import free_port
from tests.rigs.ray_autoscaler import Brought

BIN = Path(sys.executable).parent
START_SECONDS = 200
_TRIES = 4  # Ray gives a node 30 s to start, however busy the machine is


@dataclass(frozen=True)
class Host:
    """The host of a node: its address, and what its commands begin with."""

    address: str
    inside: tuple[str, ...] = ()


LOCAL = Host("127.0.0.1")
SESSION = "TEST_SESSION"  # in the environment: the head's folder
PID = "TEST_HEAD"  # and its process, which leads its group
# Begins a command to which one folder is empty, as on a machine of its own
APART = (
    "unshare",
    *(() if os.getuid() == 0 else ("--user", "--map-root-user")),
    "--mount",
    "sh",
    "-c",
    'mount -t tmpfs tmpfs "$0" && exec "$@"',
)


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment with an empty home, and nothing of Ray's in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), "PYTHONPATH": "", "COLUMNS": "120", **extra}


def can_be_apart() -> bool:
    """Returns whether this machine lets a process have mounts of its own."""
    try:
        return not subprocess.run([*APART, "/mnt", "true"], check=False).returncode
    except FileNotFoundError:
        return False


@dataclass(frozen=True)
class Ports:
    """Ports of a head."""

    gcs: int = field(default_factory=free_port)
    dashboard: int = field(default_factory=free_port)
    client: int = field(default_factory=free_port)


@contextlib.contextmanager
def ray_head(
    home: Path,
    *,
    token: bool,
    cpus: int = 2,
    memory_bytes: int = 2**33,
    jobs: bool = True,
    ports: Ports | None = None,
    host: Host = LOCAL,
    metrics_port: int = 0,
    brought: Brought | None = None,
    **extra: str,
) -> Iterator[dict[str, str]]:
    """Starts a head; gives the environment in which clients reach it.

    Args:
        home: Of its processes.
        token: Whether clients need one; another one each time, unless `extra` names it.
        cpus: Of the head.
        memory_bytes: What Ray counts there.
        jobs: Whether it takes jobs; without, it starts with half the work. On this machine alone.
        ports: Where it listens; free ones if None.
        host: Where it runs.
        metrics_port: Where it tells metrics; a free one if 0.
        brought: Which nodes its autoscaler brings; None: it has none.
        extra: More of the environment.
    """
    auth = {"RAY_AUTH_MODE": "disabled"}
    if token:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    path = f"{BIN}:{os.environ['PATH']}"
    environ = environment(home, **{**auth, **extra}, PATH=path, RAY_USAGE_STATS_ENABLED="0")
    given = ports
    for attempt in range(_TRIES):
        ports = given or Ports()
        log = home / f"head-{attempt}.log"
        with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as session:  # sockets
            options = [
                "--head",
                f"--port={ports.gcs}",
                "--dashboard-host=0.0.0.0",
                f"--dashboard-port={ports.dashboard}",
                f"--ray-client-server-port={ports.client}",
                f"--temp-dir={session}",
                f"--metrics-export-port={metrics_port or free_port()}",
            ]
            if not jobs:
                options.append("--include-dashboard=false")
            own = environ
            if brought is not None:
                options += brought.options(home, f"{host.address}:{ports.gcs}")
                own = environ | brought.environ
            with _started(host, options, cpus, own, home, log, memory_bytes) as head:
                if not _is_up(head, log):
                    continue
                address = f"http://{host.address}:{ports.dashboard}"
                if jobs:
                    _wait_until_it_serves(host, address, environ.get("RAY_AUTH_TOKEN"))
                yield {
                    **environ,
                    "RAY_API_SERVER_ADDRESS": address,
                    "RAY_ADDRESS": f"{host.address}:{ports.gcs}",
                    SESSION: session,
                    PID: str(head.pid),
                }
                if brought is not None:
                    kill(head)  # it would ask its autoscaler for leave, for longer than we wait
                return
    raise TimeoutError(f"no head comes up: {log.read_text()}")


@contextlib.contextmanager
def ray_node(
    environ: dict[str, str],
    home: Path,
    name: str,
    *,
    cpus: int = 1,
    host: Host = LOCAL,
    accelerator: str = "",
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts one more node of a head's cluster; gives its process, which leads its group.

    Its session's folder is its own, though it has the name of the head's: nodes of one machine
    would unpack a job's files over each other.
    """
    apart = (*host.inside, *APART, environ[SESSION])
    host = replace(host, inside=apart)
    options = [f"--address={environ['RAY_ADDRESS']}", f"--node-name={name}"]
    if accelerator:
        options.append(f"--labels=ray.io/accelerator-type={accelerator}")
    for _ in range(_TRIES):
        log = home / f"node-{name}.log"
        with _started(host, options, cpus, environ, home, log) as node:
            if _is_up(node, log):
                yield node
                return
    raise TimeoutError(f"node {name} does not come up: {log.read_text()}")


def _is_up(node: subprocess.Popen[bytes], log: Path) -> bool:
    """Waits until the node is, or has given up."""
    while node.poll() is None:
        if "Ray runtime started" in log.read_text():
            return True
        time.sleep(0.2)
    return False


@contextlib.contextmanager
def _started(
    host: Host,
    options: list[str],
    cpus: int,
    environ: dict[str, str],
    home: Path,
    log: Path,
    memory_bytes: int = 2**31,
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        *host.inside,
        str(BIN / "ray"),
        "start",
        "--block",
        f"--num-cpus={cpus}",
        f"--memory={memory_bytes}",
        "--object-store-memory=100000000",
        "--dashboard-agent-listen-port=0",
        "--include-log-monitor=false",  # a process that reads logs which no test asks for
        "--min-worker-port=0",
        "--max-worker-port=0",
        *([] if host.address == LOCAL.address else [f"--node-ip-address={host.address}"]),
        *options,
    ]
    with log.open("wb") as output:
        node = subprocess.Popen(
            command,
            env=environ,
            cwd=home,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield node
    finally:
        node.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            node.wait(5)
        kill(node)
        node.wait(10)


def kill(node: subprocess.Popen[bytes]) -> None:
    """Ends a node at once, with all its processes."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(node.pid, signal.SIGKILL)


def _wait_until_it_serves(host: Host, address: str, token: str | None) -> None:
    """Asks from where the head is: it may be in a network of its own."""
    header = ["--header", f"Authorization: Bearer {token}"] if token else []
    ask = [*host.inside, "curl", "--silent", "--fail", "--max-time", "5", "--output", "/dev/null"]
    until = time.monotonic() + START_SECONDS
    while subprocess.run([*ask, *header, f"{address}/api/jobs/"], check=False).returncode:
        if time.monotonic() > until:
            raise TimeoutError(f"no head serves at {address}")
        time.sleep(0.5)
