"""A run with a time limit ends in time, and over some days every test has its turn."""

import sys
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from tests.commands import run_command
from tests.time_limit import places

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("count", [1, 2, 7, 100, 175])
def test_each_day_enters_the_same_cycle_elsewhere(count: int) -> None:
    files = [f"test_{number:03}.py" for number in range(count)]
    days = [datetime(2026, 11, 27, tzinfo=UTC) + timedelta(days=n) for n in range(12)]

    runs = [places(reversed(files * 2), day) for day in days]

    for run in runs:
        assert sorted(run.values()) == list(range(count))
        follows = [run[one] == (run[other] + 1) % count for other, one in pairwise(files)]
        assert all(follows)
    first_thirds = [{file for file, place in run.items() if place <= count // 3} for run in runs]
    assert set().union(*first_thirds) == set(files)


def test_what_comes_too_late_is_skipped_and_the_run_passes() -> None:
    ran = run_command(
        [sys.executable, "-m", "pytest", "-q", "--until=0", "tests/test_covering.py"],
        folder=ROOT,
        seconds=300,
    )

    assert ran.returncode == 0, ran.stdout
    assert "tests/time_limit.py" in ran.stdout
    assert "time was up before it could begin" in ran.stdout
    assert " passed" not in ran.stdout
