"""Processor time of the test suite by folder: of each test with all processes that it started.

Each process of pytest moves into a control group of its own, which counts what it and its children
use, ranks and Ray's among them; wall time says little where two processes share two cores. Needs
the right to make control groups (root).

    PLIMSOLL_SUITE_COST=cost.jsonl python -m pytest -p tests.suite_cost --numprocesses 2
    python -m tests.suite_cost cost.jsonl
"""

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

OUT = "PLIMSOLL_SUITE_COST"
_ROOT = Path("/sys/fs/cgroup")


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
            return int((self._group / "cpu.stat").read_text().split()[1]) / 1e6
        return int((self._group / "cpuacct.usage").read_text()) / 1e9


class Recorder:
    """Writes a line for each test: [test, processor seconds], fixtures included."""

    def __init__(self, out: Path) -> None:
        self._account, self._out = Account(), out

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        used = self._account.seconds()
        yield
        with self._out.open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, self._account.seconds() - used]) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Registers the recorder where a file for its lines is named."""
    if out := os.environ.get(OUT):
        config.pluginmanager.register(Recorder(Path(out)))


def main() -> None:
    """Prints the processor seconds of each folder from a file of lines, the largest first."""
    folders: dict[str, float] = defaultdict(float)
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        test, seconds = json.loads(line)
        parts = test.partition("::")[0].split("/")
        folders["/".join(parts[: min(3, len(parts) - 1)])] += seconds
    for folder, seconds in sorted(folders.items(), key=lambda item: -item[1]):
        print(f"| `{folder}` | {seconds:.0f} |")
    print(f"| all | {sum(folders.values()):.0f} |")


if __name__ == "__main__":
    main()
