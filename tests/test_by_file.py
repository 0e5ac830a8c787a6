"""A test that ends its process fails, and the rest of a parallel run goes on to its end."""

import sys
from pathlib import Path

import pytest

from tests.commands import run_command

ROOT = Path(__file__).parents[1]
CONFTEST = """
def pytest_xdist_make_scheduler(config, log):
    from tests.by_file import ByFile
    return ByFile(config, log, lambda nodeid: nodeid.partition("::")[0])
"""
PASSES = "def test_{}(): pass\n"
ENDS = "def test_ends(): import os, time; time.sleep(1); os._exit(1)\n"


@pytest.mark.thorough
@pytest.mark.parametrize("after", [0, 2])  # the test that ends its process is the last, or is not
def test_a_lost_process_costs_one_test(after: int, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for number in range(6):
        (tmp_path / f"test_{number}.py").write_text("".join(map(PASSES.format, "abc")))
    ending = PASSES.format("before") + ENDS + "".join(map(PASSES.format, "xy"[:after]))
    (tmp_path / "test_6.py").write_text(ending)

    ran = run_command(
        [
            *(sys.executable, "-m", "pytest", str(tmp_path), "--numprocesses=2"),
            *("--no-loadscope-reorder", f"--rootdir={tmp_path}", "--import-mode=importlib"),
        ],
        folder=ROOT,
        environment={"PATH": "", "PYTHONPATH": str(ROOT)},
        seconds=120,
    )

    assert ran.returncode == 1
    assert f"1 failed, {6 * 3 + 1 + after} passed" in ran.stdout, ran.stdout
    assert "crashed while running 'test_6.py::test_ends'" in ran.stdout
