"""Durability: all that is known to be stored has been synced, as the kernel sees it.

No test cuts the power. A sweep runs under strace, and what it wrote, created, renamed or removed
and did not sync is counted as lost.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator.study.storage import open_engine, opened_storage

CALLS = "openat,write,pwrite64,ftruncate,fsync,fdatasync,unlink,rename,mkdir"
ROOT = Path(__file__).parents[3]


def can_trace() -> bool:
    """Returns True if strace is there and may trace."""
    if not shutil.which("strace"):
        return False
    return not subprocess.run(["strace", "-o", "/dev/null", "true"], check=False).returncode


def unsynced(lines: Iterable[str], folder: Path) -> dict[str, set[Path]]:
    """Returns the paths in a folder that were not synced at each mark, by the mark's word."""
    dirty, opened_before, found = set[Path](), set[Path](), dict[str, set[Path]]()
    for line in lines:
        if mark := re.search(r'"MARK (\w+)"', line):
            found.setdefault(mark[1], set()).update(dirty)
        if re.search(r"= -1 E", line):
            continue
        opened = re.match(r'\d+ +openat\(.*"(.+?)", \S*O_CREAT.*\)', line)
        written = re.match(r"\d+ +(?:write|pwrite64|ftruncate)\(\d+<(.+?)>", line)
        synced = re.match(r"\d+ +f(?:data)?sync\(\d+<(.+?)>", line)
        changed = re.match(r"\d+ +(?:unlink|rename|mkdir)\(", line)
        if opened and "O_TRUNC" not in line:
            if (path := Path(opened[1])) not in opened_before:
                dirty.add(path.parent)  # it may be new
            opened_before.add(path)
        elif written:
            dirty.add(Path(written[1]))
        elif synced:
            dirty.discard(Path(synced[1]))
        elif changed:
            for path in map(Path, re.findall(r'"(.+?)"', line)):
                dirty.add(path.parent)
                dirty.discard(path)
                opened_before.discard(path)
        dirty = {path for path in dirty if path.is_relative_to(folder)}
    return found


@pytest.mark.thorough
@pytest.mark.skipif(not can_trace(), reason="needs strace")
def test_nothing_of_a_result_that_was_told_is_unsynced(tmp_path: Path) -> None:
    log = tmp_path / "calls"
    own = tmp_path / "own"
    own.mkdir()
    traced = ["strace", "-f", "-y", "-e", f"trace={CALLS}", "-o", str(log)]
    subprocess.run(
        [*traced, sys.executable, "-m", "tests.orchestrator.study.played_driver", str(own)],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        check=True,
    )

    calls = log.read_text().splitlines()
    found = unsynced(calls, own)

    journal = own / "runs" / "small" / "journal.jsonl"  # repeats the study, and is not read
    assert found["TrialEnded"] == {journal}
    assert found["SweepEnded"] == {journal}
    calls = [re.sub(r"\d+ +(\w+).*", r"\1", call) for call in calls if f"{journal}>" in call]
    assert calls.count("fsync") == 6  # four trials, a validation, the end
    assert calls[-2:] == ["write", "fsync"]


def test_each_connection_to_a_file_syncs_its_folder_too(tmp_path: Path) -> None:
    """SQLite's default leaves the removal of a journal unsynced, which is what commits."""
    url = f"sqlite:///{tmp_path}/study.db"

    with opened_storage(url) as storage:
        for engine in (storage.engine, open_engine(url)):
            with engine.connect() as connection:
                assert connection.execute(text("PRAGMA synchronous")).scalar() == 3
