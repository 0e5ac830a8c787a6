"""Files: read with a bound, written to survive a power loss and never led away, and our tables."""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterator
from functools import cache
from importlib import resources
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

MIB = 1 << 20
DOCUMENT_BYTES, LOG_BYTES = 256 * MIB, 512 * MIB  # far more than any has
_MOST_FILES = 10_000  # of a folder to look at
_PRIVATE = 0o700  # for the user alone
_PROBLEMS = {stat.S_IFLNK: "it is a link", stat.S_IFREG: ""}
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CREATED = os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC


@cache
def packaged_table(package: str, name: str) -> Any:
    """Returns the content of a YAML file in one of our packages, which callers leave as it is."""
    return yaml.safe_load((resources.files(package) / name).read_text("utf-8"))


class FileTooLarge(OSError):
    """A file that holds more than it may, or that has no end."""


def is_file(path: Path) -> bool:
    """Returns True for the path of a file, False also for a path that is none."""
    return os.path.isfile(path)  # noqa: PTH113 - that of `Path` raises for one that is too long


def is_folder(path: Path) -> bool:
    """Returns True for the path of a folder, False also for a path that is none."""
    return os.path.isdir(path)  # noqa: PTH112


def with_home(path: str) -> Path:
    """Returns a path with `~` replaced; as it is where nobody has that home."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 - that of `Path` raises there


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


def write_durably(path: Path, content: bytes | str, *, below: Path | None = None) -> None:
    """Replaces a file as a whole: after a power loss it holds the old content or the new one.

    Makes its folder; no folder between it and `below` may be a link. What `/dev` names, such as
    `/dev/stdout`, is written to.

    Raises:
        OSError: If it cannot be written, or is no regular file of the user's; it is then as it was.
        ValueError: If the path is none, or the text cannot be encoded.
    """
    content = content.encode() if isinstance(content, str) else content
    if str(path.parent) in ("/dev", "/dev/fd"):
        if not path.is_file():
            with os.fdopen(_opened(path, os.O_WRONLY), "wb") as device:
                device.write(content)
            return
        path = real_path(path)
    new = f".plimsoll-{uuid4().hex[:8]}.new"
    with _folder(path.parent, below) as folder:
        old = _status(path, folder)
        try:
            created = os.open(new, os.O_WRONLY | os.O_EXCL | _CREATED, 0o666, dir_fd=folder)
            with os.fdopen(created, "wb") as file:
                if old is not None:
                    os.fchmod(created, stat.S_IMODE(old.st_mode))
                file.write(content)
                file.flush()
                os.fsync(created)
            os.replace(new, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=folder)
            raise
        _sync(folder)


@contextlib.contextmanager
def opened_for_appending(path: Path, *, below: Path | None = None) -> Iterator[FileIO]:
    """Opens a file to append to and to read, without a buffer; makes it and its folder.

    Raises:
        OSError: As `write_durably`.
    """
    with _folder(path.parent, below) as folder:
        is_new = _status(path, folder) is None
        access = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | _CREATED
        opened = os.open(path.name, access, 0o666, dir_fd=folder)
        with os.fdopen(opened, "a+b", buffering=0) as file:
            _check_own(path, os.fstat(opened), folder)  # it may have been replaced meanwhile
            yield file
        if is_new:
            _sync(folder)


def check_own(path: Path, *, below: Path) -> None:
    """Checks that a path has no file yet, or a regular one of the user's.

    Raises:
        OSError: If it is another file, or a folder under `below` is a link.
    """
    if os.path.lexists(path.parent):
        with _folder(path.parent, below) as folder:
            _status(path, folder)


def make_folder(path: Path, *, below: Path | None = None) -> None:
    """Makes a folder and those above it that are missing; they outlive a power loss."""
    with _folder(path, below):
        pass


def private_folder(path: Path, advice: str) -> Path:
    """Makes a folder that only the user can enter, unless it is there; returns it.

    Raises:
        OSError: If it cannot be made, or is a link or somebody else's, with this advice.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=_PRIVATE, parents=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to somebody else: {advice}")
    path.chmod(_PRIVATE)
    return path


@contextlib.contextmanager
def _folder(path: Path, below: Path | None) -> Iterator[int]:
    """Yields a descriptor of a folder, which it makes; what is done with it cannot be led away."""
    base = below or path
    base = next(folder for folder in (base, *base.parents) if folder.exists())
    opened = os.open(base, _DIRECTORY)
    try:
        for name in path.relative_to(base).parts:
            base /= name
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=opened)
                _sync(opened)
            if not stat.S_ISDIR(os.lstat(name, dir_fd=opened).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder, or a link", str(base))
            inner = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=opened)
            os.close(opened)
            opened = inner
        yield opened
    finally:
        os.close(opened)


def _status(path: Path, folder: int) -> os.stat_result | None:
    """Returns the status of the user's own file in an open folder, None if there is none."""
    try:
        status = os.lstat(path.name, dir_fd=folder)
    except FileNotFoundError:
        return None
    _check_own(path, status, folder)
    return status


def _check_own(path: Path, status: os.stat_result, folder: int) -> None:
    # in a folder of somebody else's, such as that of a mounted disk, files are the folder's owner's
    problem = _PROBLEMS.get(stat.S_IFMT(status.st_mode), "it is no regular file")
    if status.st_uid not in (os.geteuid(), os.fstat(folder).st_uid):
        problem = problem or "it belongs to another user"
    if problem:
        raise OSError(errno.EPERM, f"{problem}; remove it, or choose another name", str(path))


def _sync(folder: int) -> None:
    """Makes names in a folder outlive a power loss, where its file system can."""
    with contextlib.suppress(OSError):
        os.fsync(folder)


def _opened(path: Path, access: int) -> int:
    """Opens what exists; a pipe that nobody uses at its other end is not waited for."""
    file = os.open(path, access | os.O_NONBLOCK | os.O_CLOEXEC)
    os.set_blocking(file, True)
    return file
