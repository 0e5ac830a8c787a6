"""The command line as a user runs it: a process of its own in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PLIMSOLL = str(Path(sys.executable).with_name("plimsoll"))


def environment(home: Path, **extra: str) -> dict[str, str]:
    """This process's environment with an empty home, and nothing of Ray's in it."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), "PYTHONPATH": "", "COLUMNS": "120", **extra}


def plimsoll(
    *arguments: str, folder: Path, seconds: float = 360, **extra: str
) -> subprocess.CompletedProcess[str]:
    """Runs `plimsoll` in a folder, which is its home too, and waits for it."""
    return subprocess.run(
        [PLIMSOLL, *arguments],
        cwd=folder,
        env=environment(folder, **extra),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
