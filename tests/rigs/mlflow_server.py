"""A real MLflow server on this machine, which can be ended, stopped and started again."""

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

_NO_JOBS = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # a killed server leaves their queues


def serves(port: int) -> bool:
    """Returns whether a server answers on the port."""
    with contextlib.suppress(OSError, urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
        return True
    return False


def start_mlflow_server(
    store: str, port: int, folder: Path, *options: str
) -> subprocess.Popen[bytes]:
    """Starts one, which leads a process group; it answers some seconds later.

    Args:
        store: Its database, a URL.
        port: Where it listens, on the loopback.
        folder: For artifacts.
        options: More of `mlflow server`.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    return subprocess.Popen(
        [*command, "--port", str(port), "--artifacts-destination", str(folder), *options],
        cwd=folder,
        env={**os.environ, "MLFLOW_BACKEND_STORE_URI": store, **_NO_JOBS},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


@contextlib.contextmanager
def mlflow_server(
    store: str, port: int, folder: Path, *options: str
) -> Iterator[subprocess.Popen[bytes]]:
    """One for the while, killed with all its processes at the end."""
    server = start_mlflow_server(store, port, folder, *options)
    try:
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
