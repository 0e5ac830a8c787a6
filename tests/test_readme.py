"""The README's way from the demo to exported folders, run on a fresh clone as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.export.formats import FORMATS
from tests.documented import said_by

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line.partition("#")[0].strip()
    for line in re.findall(
        r"^ {4}(make demo\b.*|cd demo|\.\./\.venv/bin/plimsoll .*)$", README, re.MULTILINE
    )
]


def test_the_way_goes_from_the_demo_to_folders_that_are_verified() -> None:
    demo, there, *words = (command.split() for command in COMMANDS)

    assert demo == ["make", "demo"]
    assert there == ["cd", "demo"]
    verbs = [each[1] for each in words]
    assert verbs[:2] == ["report", "explain"]
    assert set(verbs[2:]) == {"export", "verify"}
    exported = [
        f"demo-{each[each.index('--format') + 1] if '--format' in each else next(iter(FORMATS))}"
        for each in words
        if each[1] == "export"
    ]
    assert exported == [each[2] for each in words if each[1] == "verify"]
    assert len(exported) > 2


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.alone  # beside other tests the sweep may use up its minutes
@pytest.mark.timeout(1800)
def test_its_commands_run_on_a_fresh_clone(tmp_path: Path) -> None:
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    (clone / ".venv").symlink_to(Path(sys.prefix))
    for name in ("pyproject.toml", "constraints.txt"):  # older than what is installed: no setup
        os.utime(clone / name, (0, 0))
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(clone),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }

    folder = clone
    for command in COMMANDS:
        if command.startswith("cd "):
            folder /= command.removeprefix("cd ")
            continue
        said_by(command, folder, environment)

    plimsoll = next(command.split()[0] for command in COMMANDS if "plimsoll" in command)
    for _ in range(2):  # a slow machine uses up the minutes: then the same command goes on first
        again = said_by(f"{plimsoll} tune demo.yaml", folder, environment)
        if " starts" not in again:
            break
    assert "resuming after" in again
    assert "page: file://" in again
    assert "all from earlier runs" in again
    assert " starts" not in again  # no trial, and no validation
    assert "validation in a fresh worker group passed" in again
