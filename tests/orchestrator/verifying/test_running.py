"""Commands that are run with a witness: what comes of those that fail, hang or do not train."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import psutil
import pytest

from orchestrator.verifying import witnessed
from search_spaces.errors import UserError
from tests.orchestrator.verifying.values import an_export

ROOT = Path(__file__).parents[3]
TRAINS = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for step in range(3):
    for _ in range(2):
        (model(torch.ones(3, 4)).mean() * 0 + step).backward()
    optimizer.step()
"""
HANGS = """
import subprocess, sys, time
print("waiting for nothing", flush=True)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "a child of the run"])
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The witness in the processes that are started is that of this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def run(folder: Path, script: str, *, seconds: float = 60.0, local: bool = True) -> list[float]:
    """Losses that were seen of the script."""
    (folder / "train.py").write_text(script)
    exported = an_export(command=f"{sys.executable} train.py", local=local)
    (rank,) = witnessed(exported, folder, steps=3, seconds=seconds)
    assert (rank.settings.wrapper, rank.settings.rows) == ("none", 3)
    assert [step.passes for step in rank.steps] == [2, 2, 2]
    return [step.loss or 0.0 for step in rank.steps]


def test_losses_of_passes_are_added_up(tmp_path: Path) -> None:
    assert run(tmp_path, TRAINS) == [0.0, 2.0, 4.0]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("print('no such model'); raise SystemExit(3)", r"ended with 3; .*\nno such model"),
        ("raise SystemExit(3)", "ended with 3; it said nothing"),
        ("print('done')", "no process was seen to take two optimizer steps"),
        ("import torch", "no process was seen to take two optimizer steps"),
    ],
)
def test_what_did_not_train_is_one_message(script: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words):
        run(tmp_path, script)


def test_what_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"took longer than 3 s; .*\nwaiting for nothing"):
        run(tmp_path, HANGS, seconds=3)

    until = time.monotonic() + 10
    while (left := _children()) and time.monotonic() < until:
        time.sleep(0.1)
    assert not left


def _children() -> list[psutil.Process]:
    found = psutil.process_iter(["cmdline", "status"])
    return [
        process
        for process in found
        if "a child of the run" in (process.info["cmdline"] or ())
        and process.info["status"] != psutil.STATUS_ZOMBIE
    ]


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="`no-such-launcher` cannot run: No such file"):
        witnessed(an_export(command="no-such-launcher x"), tmp_path, steps=3, seconds=5)


def test_what_runs_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="starts nothing on this machine"):
        run(tmp_path, TRAINS, local=False)
