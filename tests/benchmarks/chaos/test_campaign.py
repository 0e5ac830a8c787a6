"""A few minutes of the campaign, with fixed seeds; and with bugs of ours, which it has to find.

In a process of its own, which becomes the parent of what its sweeps leave behind.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

# minutes of processes that start and are killed, on idle cores
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[3]


def campaign(folder: Path, *options: str) -> dict[str, Any]:
    """Runs a campaign; returns what it found, with which its exit code agrees."""
    out = folder / "chaos.json"
    # under a short name: Ray's sockets lie in it
    with tempfile.TemporaryDirectory(prefix="c", dir="/tmp", ignore_cleanup_errors=True) as tmp:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.chaos", "--out", str(out), *options],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": tmp, "OMP_NUM_THREADS": "1"},
            check=False,
        )
    found: dict[str, Any] = json.loads(out.read_text())
    assert (done.returncode == 0) == (not any(problems(found).values())), found
    return found


def problems(found: dict[str, Any]) -> dict[str, int]:
    """Counts what should never happen."""
    names = ("hangs", "lost", "duplicated", "invented", "leaked", "unexplained", "troubles")
    return {name: found[name] for name in names}


def test_a_sweep_keeps_what_it_measured_through_faults(tmp_path: Path) -> None:
    kinds = ("rank_killed", "rank_stopped", "past_the_budget", "driver_ended", "actor_killed")
    # while trials run: a rank that is stopped in a start costs `start_minutes`
    options = ("--sweeps", "1", "--faults", "4", "--seed", "1260")

    found = campaign(tmp_path, *options, "--kinds", *kinds)

    assert not any(problems(found).values()), found
    assert sum(found["faults"].values()) >= 3


# a fault in the middle of the first trial of a sweep on SQLite
EARLY = ("--sweeps", "1", "--faults", "1", "--seed", "42")


def test_what_is_dropped_or_changed_or_left_is_found(tmp_path: Path) -> None:
    bugs = ("--plant", "drop_record", "invent", "leave_process")

    found = campaign(tmp_path, *EARLY, "--kinds", "loss_is_nan", *bugs)

    assert found["lost"] == 1, found
    assert found["invented"] == 1, found
    assert found["leaked"] > 0, found
