"""Files: reads end, and writes leave a whole file whatever happens in between (R12, R16)."""

from __future__ import annotations

import os
import random
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from search_spaces.safety import files
from search_spaces.safety.files import MIB, read_bounded, write_durably

WRITER = """
import sys
from pathlib import Path
from search_spaces.safety.files import write_durably

print("ready", flush=True)
while True:
    for letter in "ab":
        write_durably(Path(sys.argv[1]), letter * (4 << 20))
"""


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_what_has_no_end_is_too_large(device: str) -> None:
    with pytest.raises(files.FileTooLarge, match="it is larger than 1 MiB"):
        read_bounded(Path(device), MIB)


def test_a_file_may_be_as_large_as_the_bound(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 1000)

    assert len(read_bounded(file, 1000)) == 1000
    with pytest.raises(files.FileTooLarge, match="it is larger than 999 bytes"):
        read_bounded(file, 999)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert read_bounded(pipe, MIB) == b""  # nobody writes, nobody is waited for

    reads, writes = os.pipe()  # as the shell makes it of <(command)
    os.write(writes, b"model: ")
    thread = threading.Timer(0.2, lambda: (os.write(writes, b"gpt2"), os.close(writes)))
    thread.start()
    assert read_bounded(Path(f"/dev/fd/{reads}"), MIB) == b"model: gpt2"
    thread.join()
    os.close(reads)


def test_a_process_that_is_killed_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    draw = random.Random(0)
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(draw.uniform(0.02, 0.1))
        writer.kill()
        writer.communicate()

        if file.exists():
            content = file.read_bytes()
            assert (len(content), len(set(content))) == (4 << 20, 1)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_durably(file, "old")

    with pytest.raises(UnicodeEncodeError):
        write_durably(file, "\ud800")
    with pytest.raises(OSError, match="No space left"):
        write_durably(Path("/dev/full"), "new")

    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_links_and_permissions_stay(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    write_durably(file, "old")
    file.chmod(0o640)
    link.symlink_to(file)

    write_durably(link, "new")

    assert link.is_symlink()
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_pipe_that_nobody_reads_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(OSError, match="No such device"):
        write_durably(tmp_path / "pipe", "new")
