"""A machine whose clock jumps, whose disk is slow or fails, and whose power is lost.

A library that all processes of a sweep load first (machine.c) stands between them and the kernel.
It keeps each file of the sweep's disk as it was when it was last synced, and each folder's list of
names. A loss of power leaves that and nothing else: the strictest disk, on which nothing is safe
that nobody asked to be safe.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_WANTED = struct.Struct("dII")  # seconds that the clock is ahead, ms of a sync, errno of writes


@dataclass(frozen=True, slots=True)
class Machine:
    """The library, what it is told, and what it keeps, in a folder.

    Attributes:
        folder: Of these three.
        disk: The folder that is on the disk.
    """

    folder: Path
    disk: Path

    @classmethod
    def made(cls, folder: Path, disk: Path) -> Machine:
        """Compiles the library; the disk is made, and is empty."""
        machine = cls(folder, disk)
        disk.mkdir()
        (folder / "kept").mkdir(parents=True)
        source = Path(__file__).with_name("machine.c")
        flags = ["-O2", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(machine._library)]
        subprocess.run(["gcc", *flags, str(source), "-ldl"], check=True)
        machine.want()
        return machine

    @property
    def _library(self) -> Path:
        return self.folder / "machine.so"

    @property
    def _wanted(self) -> Path:
        return self.folder / "wanted"

    @property
    def environ(self) -> dict[str, str]:
        """Environment of processes on this machine."""
        return {
            "LD_PRELOAD": str(self._library),
            "CHAOS_WANTED": str(self._wanted),
            "CHAOS_WATCHED": str(self.disk),
            "CHAOS_KEPT": str(self.folder / "kept"),
        }

    def want(self, *, clock_seconds: float = 0.0, sync_ms: int = 0, error: int = 0) -> None:
        """Changes the machine for all its processes, from now on.

        Args:
            clock_seconds: By which Python's wall clock is ahead.
            sync_ms: By which each sync of the disk takes longer.
            error: The errno of its writes and syncs; 0 if they succeed.
        """
        mode = "r+b" if self._wanted.exists() else "wb"  # processes have mapped it
        with self._wanted.open(mode) as file:
            file.write(_WANTED.pack(clock_seconds, sync_ms, error))

    def lose_power(self) -> None:
        """Leaves of the disk what was synced; no process of the sweep may run."""
        after = self.folder / "after"
        after.mkdir()
        self._restore(_key(self.disk), after)
        for path in self.disk.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        for path in after.iterdir():
            shutil.move(path, self.disk)
        after.rmdir()
        self._keep_all()

    def _restore(self, key: str, into: Path) -> None:
        listing = self.folder / "kept" / key
        for line in listing.read_text().splitlines() if listing.exists() else ():
            kind, key, name = line.split(" ", 2)
            if kind == "d":
                (into / name).mkdir()
                self._restore(key, into / name)
            elif (content := self.folder / "kept" / key).exists():
                shutil.copyfile(content, into / name)
            else:
                (into / name).touch()  # its name was synced, and nothing that was written to it

    def _keep_all(self) -> None:
        """Syncs what there is: it is what the machine finds when it starts."""
        sync = "import os, sys; [os.fsync(os.open(path, os.O_RDONLY)) for path in sys.argv[1:]]"
        subprocess.run(
            [sys.executable, "-c", sync, str(self.disk), *map(str, self.disk.rglob("*"))],
            env={**os.environ, **self.environ},
            check=True,
        )


def _key(path: Path) -> str:
    """Returns the name under which the library keeps a file: see key_of in machine.c."""
    told = subprocess.run(
        ["stat", "--format=%i-%.9W", str(path)], check=True, capture_output=True, text=True
    ).stdout.strip()
    number, _, born = told.partition("-")
    seconds, _, rest = born.partition(".")
    return f"{number}-{seconds}.{int(rest or 0)}"
