"""Files: the user's, read with a bound and written to survive a power loss, and our own tables."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from functools import cache
from importlib import resources
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

MIB = 1 << 20
DOCUMENT_BYTES, LOG_BYTES = 256 * MIB, 512 * MIB  # far more than any has
_MOST_FILES = 10_000  # of a folder to look at


@cache
def packaged_table(package: str, name: str) -> Any:
    """Returns the content of a YAML file in one of our packages, which callers leave as it is."""
    return yaml.safe_load((resources.files(package) / name).read_text("utf-8"))


class FileTooLarge(OSError):
    """A file that holds more than it may, or that has no end."""


def is_file(path: Path) -> bool:
    """Returns True for the path of a file, False also for a path that is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, a null byte
        return False


def is_folder(path: Path) -> bool:
    """Returns True for the path of a folder, False also for a path that is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def with_home(path: str) -> Path:
    """Returns a path with `~` replaced; as it is where nobody has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def expanded(path: str) -> str:
    """Returns a path of a specification with `~` and each `${NAME}` replaced.

    Raises:
        ValueError: If a variable of the environment is not set.
    """

    def value(named: re.Match[str]) -> str:
        if (found := os.environ.get(named[1])) is None:
            raise ValueError(f"the environment variable {named[1]} is not set")
        return found

    path = re.sub(r"\$\{([^}]*)\}", value, path)
    return str(with_home(path)) if path.startswith("~") else path


def real_path(path: Path) -> Path:
    """Returns an absolute path without links; one in a circle stays, and fails when it is opened.

    Raises:
        ValueError: If the path is none.
    """
    return Path(os.path.realpath(path))


def file_stamp(path: str | Path) -> tuple[int, int]:
    """Returns time and size of a file, which identify its content; zeros if it cannot be read.

    Of a folder, they are the latest time and the total size of its first files.
    """
    path = with_home(str(path))
    try:
        files = [path, *islice(path.rglob("*"), _MOST_FILES)] if is_folder(path) else [path]
        found = [file.stat() for file in files]
    except (OSError, ValueError):  # reading it raises the error
        return (0, 0)
    return max(each.st_mtime_ns for each in found), sum(each.st_size for each in found)


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """Reads a whole file, pipe or device.

    Args:
        path: The file.
        most_bytes: The most that it may hold.

    Raises:
        FileTooLarge: If it holds more.
        OSError: If it cannot be read.
        ValueError: If the path is none.
    """
    with os.fdopen(_opened(path, os.O_RDONLY), "rb") as file:
        content = file.read(most_bytes + 1)
    if len(content) <= most_bytes:
        return content
    size = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes} bytes"
    raise FileTooLarge(errno.EFBIG, f"it is larger than {size}", str(path))


def write_durably(path: Path, content: bytes | str) -> None:
    """Replaces a file as a whole: after a power loss it holds the old content or the new one.

    What is no regular file, such as a pipe or `/dev/stdout`, is written to.

    Raises:
        OSError: If it cannot be written; the old file is then as it was.
        ValueError: If the path is none, or the text cannot be encoded.
    """
    content = content.encode() if isinstance(content, str) else content
    target = real_path(path) if path.is_symlink() else path
    old = target.stat().st_mode if target.exists() else None
    if old is not None and not stat.S_ISREG(old):
        with os.fdopen(_opened(target, os.O_WRONLY), "wb") as device:
            device.write(content)
        return
    new = target.with_name(f".plimsoll-{uuid4().hex[:8]}.new")
    try:
        with new.open("xb") as file:
            if old is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(old))
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def make_folder(path: Path) -> None:
    """Makes a folder and those above it, unless they are there; they outlive a power loss.

    Raises:
        OSError: If that fails.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Makes names in a folder outlive a power loss, where its file system can."""
    with contextlib.suppress(OSError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _opened(path: Path, access: int) -> int:
    """Opens what exists; a pipe that nobody uses at its other end is not waited for."""
    file = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(file, True)
    return file
