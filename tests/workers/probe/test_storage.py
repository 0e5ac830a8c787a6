"""Tests `workers.probe.rates`: the file that it writes, and its time limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.probe.rates import CHUNK_BYTES, drive_rates


class Ticking:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("chunks", "most_seconds", "seconds", "moved"),
    # the clock is read at the start, before each chunk (also one that comes too late), at the end
    [(3, 100.0, 4.0, 3), (1, 100.0, 2.0, 1), (50, 4.0, 5.0, 3)],
    ids=["whole", "one", "cut short"],
)
def test_rates_are_bytes_by_the_seconds_they_took(
    tmp_path: Path, chunks: int, most_seconds: float, seconds: float, moved: int
) -> None:
    rates = drive_rates(
        tmp_path, file_bytes=chunks * CHUNK_BYTES, most_seconds=most_seconds, clock=Ticking()
    )

    assert rates.write_bytes_per_second == pytest.approx(moved * CHUNK_BYTES / seconds)
    # what was written is read back, in time
    assert rates.read_bytes_per_second == pytest.approx(moved * CHUNK_BYTES / (moved + 1))
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a file system in memory")
def test_a_file_system_in_memory_is_measured_too() -> None:
    rates = drive_rates(Path("/dev/shm"), file_bytes=CHUNK_BYTES, most_seconds=1.0)

    assert rates.write_bytes_per_second > 0
    assert rates.read_bytes_per_second > 0


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        drive_rates(tmp_path / "none", file_bytes=1, most_seconds=1.0)
