"""The machine of a sweep: what a loss of power leaves is what was synced, and nothing else."""

import errno
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import run_command
from tests.rigs.machine import Machine

WRITES = """
import os, sqlite3, sys
from pathlib import Path

disk = Path(sys.argv[1])

def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)

(disk / "nothing").touch()
(disk / "part").write_text("synced")
sync(disk / "part")
(disk / "renamed").write_text("old")
sync(disk / "renamed")
(disk / "sub").mkdir()
(disk / "sub" / "inner").write_text("inner")
sync(disk / "sub" / "inner")
sync(disk / "sub")
sync(disk)
with (disk / "part").open("a") as part:
    part.write(", and more")
(disk / "new").write_text("new")
sync(disk / "new")
(disk / "new").rename(disk / "renamed")  # and the folder is not synced
(disk / "sub" / "late").write_text("late")
"""
COMMITS = """
import sqlite3, sys

connection = sqlite3.connect(sys.argv[1] + "/study.db", isolation_level=None)
connection.execute("PRAGMA synchronous = " + sys.argv[2])
connection.execute("CREATE TABLE IF NOT EXISTS trials (number)")
for number in range(int(sys.argv[3])):
    connection.execute("INSERT INTO trials VALUES (?)", (number,))
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.made(tmp_path / "machine", tmp_path / "disk")


def run(machine: Machine, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_command(
        [sys.executable, "-c", code, str(machine.disk), *words],
        environment={**os.environ, **machine.environ},
    )


def test_a_loss_of_power_leaves_what_was_synced(machine: Machine) -> None:
    assert run(machine, WRITES).stderr == ""

    machine.lose_power()

    files = [path for path in machine.disk.rglob("*") if path.is_file()]
    assert {str(path.relative_to(machine.disk)): path.read_text() for path in files} == {
        "nothing": "",
        "part": "synced",
        "renamed": "old",
        "sub/inner": "inner",
    }
    machine.lose_power()  # it was on the disk when the machine started
    assert (machine.disk / "part").read_text() == "synced"


@pytest.mark.parametrize(("synchronous", "kept"), [("EXTRA", 5), ("OFF", 0)])
def test_sqlite_keeps_what_it_has_synced(machine: Machine, synchronous: str, kept: int) -> None:
    assert run(machine, COMMITS, synchronous, "5").stderr == ""

    machine.lose_power()

    try:
        with sqlite3.connect(machine.disk / "study.db") as connection:
            found = connection.execute("SELECT count(*) FROM trials").fetchone()[0]
    except sqlite3.OperationalError:  # not even the table
        found = 0
    assert found == kept


def test_its_disk_fails_and_its_clock_jumps_while_that_is_wanted(machine: Machine) -> None:
    assert run(machine, COMMITS, "EXTRA", "1").returncode == 0
    machine.want(error=errno.EIO)
    assert "disk I/O error" in run(machine, COMMITS, "EXTRA", "1").stderr

    machine.want(clock_seconds=-86400)
    told = float(run(machine, "import time; print(time.time())").stdout)
    assert -86401 <= told - time.time() < -86300
    assert run(machine, COMMITS, "EXTRA", "1").returncode == 0
