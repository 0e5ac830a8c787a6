"""Ends a long run in time: no test begins after `--until`, and each day begins with other files.

The thorough tests take half an hour on one machine and more than an hour on a slower one, but a
check before each change has to end. What one day does not reach, another one begins with.
"""

import time
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest


def skip_if_late(item: pytest.Item) -> None:
    """Skips a test that begins after the time of `--until`; none without that option."""
    until = item.config.getoption("until")
    if until is not None and time.time() > until:
        pytest.skip("time was up before it could begin")


def places(files: Iterable[str], day: datetime | None = None) -> dict[str, int]:
    """Place of each file in the run of a day: a cycle, which each day enters elsewhere.

    Args:
        files: Files of tests in any order; a name may come again.
        day: Day of the run; today, all over the world the same (UTC), by default.
    """
    cycle = sorted(set(files))
    stride = max(1, round(0.618 * len(cycle)))  # two days in a row begin far from each other
    first = (day or datetime.now(UTC)).toordinal() * stride
    return {file: (place - first) % len(cycle) for place, file in enumerate(cycle)}
