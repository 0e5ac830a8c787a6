"""Processor time of the test suite by folder: of each test with all processes that it started.

Each process of pytest moves into a control group of its own, which counts what it and its children
use, ranks and Ray's among them; wall time says little where two processes share two cores. Needs
the right to make control groups (root).

    PLIMSOLL_SUITE_COST=cost.jsonl python -m pytest -p tests.suite_cost --numprocesses 2
    python -m tests.suite_cost cost.jsonl
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

OUT = "PLIMSOLL_SUITE_COST"
_ROOT = Path("/sys/fs/cgroup")
_NANO, _MICRO = 1e-9, 1e-6


class Account:
    """The control group of this process: the processor time that has been used in it."""

    def __init__(self) -> None:
        second_version = (_ROOT / "cgroup.controllers").exists()
        self._group = (_ROOT if second_version else _ROOT / "cpuacct") / f"suite-{os.getpid()}"
        self._second_version = second_version
        self._group.mkdir(exist_ok=True)
        (self._group / "cgroup.procs").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """Processor seconds since the group was made."""
        if self._second_version:
            first_line = (self._group / "cpu.stat").read_text().splitlines()[0]
            return int(first_line.split()[1]) * _MICRO
        return int((self._group / "cpuacct.usage").read_text()) * _NANO


class Recorder:
    """Writes a line for each phase of each test: [test, processor seconds, wall seconds]."""

    def __init__(self, out: Path) -> None:
        self._account, self._out = Account(), out

    def _measured(self, item: pytest.Item) -> Iterator[None]:
        used, started = self._account.seconds(), time.monotonic()
        yield
        line = [item.nodeid, self._account.seconds() - used, time.monotonic() - started]
        with self._out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Iterator[None]:
        yield from self._measured(item)


def pytest_configure(config: pytest.Config) -> None:
    """Registers the recorder where a file for its lines is named."""
    if out := os.environ.get(OUT):
        config.pluginmanager.register(Recorder(Path(out)))


def by_folder(lines: list[tuple[str, float, float]], depth: int) -> dict[str, float]:
    """Processor seconds of each folder, the largest first."""
    found: dict[str, float] = defaultdict(float)
    for test, seconds, _ in lines:
        parts = test.partition("::")[0].split("/")
        found["/".join(parts[: min(depth, len(parts) - 1)])] += seconds
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def main() -> None:
    """Prints a table of the lines in a file."""
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    lines = [tuple(json.loads(line)) for line in text.splitlines()]
    folders = by_folder(lines, depth=3)
    for folder, seconds in folders.items():
        print(f"| `{folder}` | {seconds:.0f} |")
    print(f"| all | {sum(folders.values()):.0f} |")


if __name__ == "__main__":
    main()
