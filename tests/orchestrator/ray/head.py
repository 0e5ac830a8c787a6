"""A Ray head of the test's own, with job server and, where asked, token authentication."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.orchestrator.ray.cli import environment

BIN = Path(sys.executable).parent
START_SECONDS = 200


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def ray_head(home: Path, *, token: bool, **extra: str) -> Iterator[dict[str, str]]:
    """Starts a head of 2 CPUs; gives the environment in which clients reach it.

    Ends only what it started: `ray stop` would end every Ray on the machine.
    """
    auth = {"RAY_AUTH_MODE": "disabled"}
    if token:
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16)}
    path = f"{BIN}:{os.environ['PATH']}"
    environ = environment(home, **auth, **extra, PATH=path, RAY_USAGE_STATS_ENABLED="0")
    gcs, dashboard, client = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as session:  # sockets
        head = subprocess.Popen(
            [
                str(BIN / "ray"),
                "start",
                "--head",
                "--block",
                "--num-cpus=2",
                f"--port={gcs}",
                f"--dashboard-port={dashboard}",
                f"--ray-client-server-port={client}",
                "--dashboard-agent-listen-port=0",
                "--min-worker-port=0",
                "--max-worker-port=0",
                "--object-store-memory=100000000",
                f"--temp-dir={session}",
            ],
            env=environ,
            cwd=home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{dashboard}"
        try:
            _wait_until_it_serves(address, environ.get("RAY_AUTH_TOKEN"))
            yield {
                **environ,
                "RAY_API_SERVER_ADDRESS": address,
                "RAY_ADDRESS": f"127.0.0.1:{gcs}",
            }
        finally:
            head.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                head.wait(20)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(head.pid, signal.SIGKILL)
            head.wait(10)


def _wait_until_it_serves(address: str, token: str | None) -> None:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"{address}/api/jobs/", headers=headers)
    until = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(request, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)
