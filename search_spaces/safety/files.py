"""Files of the user's: read with a bound, and written so that a power loss leaves them whole."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import stat
import time
from itertools import islice
from pathlib import Path
from uuid import uuid4

MIB = 1 << 20
DOCUMENT_BYTES, LOG_BYTES = 256 * MIB, 512 * MIB  # far more than any has
_PIPE_SECONDS = 10.0  # for what is no regular file, such as a pipe of the shell
_MODE = 0o666  # narrowed by the umask
_MOST_FILES = 10_000  # of a folder to look at


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
    """Reads a whole file, pipe or device, as far as it ends.

    Args:
        path: The file.
        most_bytes: The most that it may hold.

    Raises:
        FileTooLarge: If it holds more.
        OSError: If it cannot be read, or a pipe does not end within 10 s.
        ValueError: If the path is none.
    """
    # a pipe without a writer would not open
    file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(os.fstat(file).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        content = bytearray()
        until = time.monotonic() + _PIPE_SECONDS
        while len(content) <= most_bytes:
            part = _next(file, min(most_bytes + 1 - len(content), MIB), until, path)
            if not part:
                return bytes(content)
            content += part
    finally:
        os.close(file)
    size = f"{most_bytes // MIB} MiB" if most_bytes >= MIB else f"{most_bytes} bytes"
    raise FileTooLarge(errno.EFBIG, f"it is larger than {size}", str(path))


def _next(file: int, count: int, until: float, path: Path) -> bytes:
    while True:
        try:
            return os.read(file, count)
        except BlockingIOError:
            wait = until - time.monotonic()
            if wait <= 0 or not select.select([file], [], [], wait)[0]:
                reason = f"it did not end within {_PIPE_SECONDS:.0f} s"
                raise TimeoutError(errno.ETIMEDOUT, reason, str(path)) from None


def write_durably(path: Path, content: bytes | str) -> None:
    """Replaces a file as a whole: after a power loss it holds the old content or the new one.

    What is no regular file, such as a pipe or `/dev/stdout`, is written to.

    Raises:
        OSError: If it cannot be written; the old file is then as it was.
        ValueError: If the path is none, or the text cannot be encoded.
    """
    content = content.encode() if isinstance(content, str) else content
    target = real_path(path) if path.is_symlink() else path
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    if not stat.S_ISREG(mode):
        _write(os.open(target, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC), content)
        return
    new = target.with_name(f".plimsoll-{uuid4().hex[:8]}.new")
    try:
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
        if stat.S_IMODE(mode):
            os.fchmod(file, stat.S_IMODE(mode))
        _write(file, content, sync=True)
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


def _write(file: int, content: bytes, *, sync: bool = False) -> None:
    with os.fdopen(file, "wb", buffering=0) as opened:
        written = 0
        while written < len(content):
            written += opened.write(content[written:]) or _full()
        if sync:
            os.fsync(file)


def _full() -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
