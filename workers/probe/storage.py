"""Write and read rates of a drive, with direct I/O if the file system supports it."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK_BYTES = 2**23


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveRates:
    """Rates of a drive; `direct_io` is set if direct I/O was used.

    Without direct I/O (tmpfs), writing ends with fsync, and the kernel is asked to drop the file
    from the page cache before it is read. It may ignore that.
    """

    write_bytes_per_second: float
    read_bytes_per_second: float
    direct_io: bool


def drive_rates(
    folder: Path,
    *,
    file_bytes: int,
    most_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> DriveRates:
    """Writes a file to a folder, reads it back and deletes it.

    Args:
        folder: An existing folder on the drive.
        file_bytes: Size of the file, rounded down to whole chunks, at least one.
        most_seconds: Time limit for writing, and again for reading.
        clock: Returns the time in seconds.

    Raises:
        OSError: If the folder is not writable or has no space.
    """
    with tempfile.TemporaryDirectory(prefix="plimsoll-probe-", dir=folder) as inside:
        path = Path(inside) / "file"
        path.touch()
        direct = _takes_direct_io(path)
        chunks = max(file_bytes // CHUNK_BYTES, 1)
        with _aligned_chunk() as chunk:
            with _opened(path, os.O_WRONLY, direct=direct) as file:
                write, written = _rate(
                    lambda: os.write(file, chunk),
                    lambda: os.fsync(file),
                    chunks,
                    most_seconds,
                    clock,
                )
            with _opened(path, os.O_RDONLY, direct=direct) as file:
                if not direct:
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                read, _ = _rate(
                    lambda: os.readv(file, [chunk]), lambda: None, written, most_seconds, clock
                )
    return DriveRates(write_bytes_per_second=write, read_bytes_per_second=read, direct_io=direct)


def _rate(
    move: Callable[[], int],
    finish: Callable[[], object],
    chunks: int,
    most_seconds: float,
    clock: Callable[[], float],
) -> tuple[float, int]:
    """Returns bytes per second, and the number of chunks that were moved."""
    started, moved, done = clock(), 0, 0
    while done < chunks and clock() - started < most_seconds:
        moved += move()
        done += 1
    finish()
    return moved / (clock() - started), done


@contextmanager
def _aligned_chunk() -> Iterator[mmap.mmap]:
    # direct I/O needs page-aligned memory; random bytes, so that the drive cannot compress them
    with mmap.mmap(-1, CHUNK_BYTES) as chunk:
        chunk.write(os.urandom(CHUNK_BYTES))
        yield chunk


@contextmanager
def _opened(path: Path, flags: int, *, direct: bool) -> Iterator[int]:
    file = os.open(path, flags | (_direct_flag() if direct else 0))
    try:
        yield file
    finally:
        os.close(file)


def _takes_direct_io(path: Path) -> bool:
    if not _direct_flag():
        return False
    try:
        os.close(os.open(path, os.O_WRONLY | _direct_flag()))
    except OSError:  # the file system has none
        return False
    return True


def _direct_flag() -> int:
    return getattr(os, "O_DIRECT", 0)  # Linux has it
