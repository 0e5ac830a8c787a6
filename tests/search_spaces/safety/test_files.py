"""Files: reads end, and writes leave a whole file whatever happens in between (R12, R16)."""

import os
import random
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from search_spaces.safety import files
from search_spaces.safety.files import MIB, opened_for_appending, read_bounded, write_durably

IMPORT = "from pathlib import Path; from search_spaces.safety.files import write_durably"
Write = Callable[..., None]


def append(path: Path, content: bytes, *, below: Path) -> None:
    """Appends to a file as the journal does."""
    with opened_for_appending(path, below=below) as file:
        file.write(content)


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


def test_permissions_stay_and_missing_folders_are_made(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "file"
    write_durably(file, "old")
    file.chmod(0o640)

    write_durably(file, "new", below=tmp_path)

    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o777 & ~umask()


def umask() -> int:
    """Returns the mask of this process's new files."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_streams_of_a_process_are_written_to(tmp_path: Path) -> None:
    code = f"{IMPORT}; write_durably(Path('/dev/stdout'), 'through a pipe')"
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"through a pipe"

    with (tmp_path / "file").open("wb") as file:
        subprocess.run(command, stdout=file, check=True)
    assert (tmp_path / "file").read_text() == "through a pipe"


@pytest.mark.parametrize("write", [write_durably, append])
def test_a_link_on_the_way_is_followed_only_above(tmp_path: Path, write: Write) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")

    with pytest.raises(NotADirectoryError, match="it is no folder, or a link"):
        write(tmp_path / "link" / "file", b"new", below=tmp_path)
    assert list((tmp_path / "outside").iterdir()) == []

    write(tmp_path / "link" / "file", b"new", below=tmp_path / "link")
    assert (tmp_path / "outside" / "file").read_bytes() == b"new"


@pytest.mark.parametrize("write", [write_durably, append])
def test_only_regular_files_of_ones_own_are_written(tmp_path: Path, write: Write) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()

    for name, problem in (("link", "a link"), ("pipe", "no regular"), ("folder", "no regular")):
        with pytest.raises(OSError, match=f"it is {problem}"):
            write(tmp_path / name, b"new", below=tmp_path)
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_link_that_comes_at_the_last_moment_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    monkeypatch.setattr(files, "_status", lambda *_: None)

    with pytest.raises(OSError, match="Too many levels"):
        append(tmp_path / "link", b"new", below=tmp_path)
    write_durably(tmp_path / "link", "new")

    assert (tmp_path / "file").read_text() == "old"
    assert not (tmp_path / "link").is_symlink()
