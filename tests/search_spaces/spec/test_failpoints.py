"""Failpoints: each step has its place in the code, counts in all processes and strikes once."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from search_spaces.spec.failpoints import FOLDER_VARIABLE, VARIABLE, Step, arm, step

ROOT = Path(__file__).parents[3]
PACKAGES = ("search_spaces", "workers", "orchestrator", "plimsoll")
REACHES = """
from search_spaces.spec.failpoints import Step, step

for _ in range(3):
    try:
        with step(Step.STUDY_CLOSE):
            print("inside", flush=True)
    except OSError as error:
        print(error.strerror)
"""


def reaching(folder: Path, orders: str) -> subprocess.Popen[str]:
    """Starts a process that comes to a step three times."""
    return subprocess.Popen(
        [sys.executable, "-c", REACHES],
        env={"PYTHONPATH": str(ROOT), VARIABLE: orders, FOLDER_VARIABLE: str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_each_step_stands_in_one_place_of_the_code() -> None:
    text = "".join(
        file.read_text("utf-8") for package in PACKAGES for file in (ROOT / package).rglob("*.py")
    )

    places = Counter(re.findall(r"\bstep\(Step\.(\w+)\)", text))

    assert places == dict.fromkeys(Step.__members__, 1)


def test_every_step_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "faults.md").read_text("utf-8")

    assert [one for one in Step if f"`{one}`" not in page] == []


def test_a_failpoint_strikes_once_in_all_processes(tmp_path: Path) -> None:
    processes = [reaching(tmp_path, "study.close.after=kill:2") for _ in range(2)]
    said = [process.communicate()[0] for process in processes]

    assert sorted(process.returncode for process in processes) == [-signal.SIGKILL, 0]
    assert max(said, key=len) == "inside\n" * 3
    assert (tmp_path / "study.close.after.struck").read_text().startswith("kill ")
    counted = len((tmp_path / "study.close.after").read_bytes())
    assert counted == len("".join(said).split())
    assert reaching(tmp_path, "study.close.after=kill:2").communicate()[0] == "inside\n" * 3


def test_a_full_disk_is_an_error_of_the_step(tmp_path: Path) -> None:
    said = reaching(tmp_path, "study.close.before=full").communicate()[0]

    assert said.splitlines() == ["No space left on device", "inside", "inside"]
    assert len((tmp_path / "study.close.after").read_bytes()) == 2


def test_a_process_that_stops_goes_on_when_it_is_told_to(tmp_path: Path) -> None:
    process = reaching(tmp_path, "study.close.before=stop:3")
    try:
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            assert process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGCONT)

        assert process.communicate()[0] == "inside\n" * 3
    finally:
        process.kill()
        process.wait()


def test_nothing_is_counted_without_a_folder() -> None:
    assert step(Step.STUDY_CLOSE) is step(Step.FILE_WRITE)


@pytest.mark.parametrize("order", ["study.close=kill", "x.before=kill", "study.close.after=end"])
def test_an_order_that_names_nothing_is_refused(order: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(order)):
        arm({VARIABLE: order, FOLDER_VARIABLE: str(tmp_path)})
