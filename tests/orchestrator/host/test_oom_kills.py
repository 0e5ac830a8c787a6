"""The kernel's count of OOM kills: the container's own takes precedence over the machine's."""

from pathlib import Path

import pytest

from orchestrator import host as counting
from orchestrator.host import oom_kills

EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"
VMSTAT = "nr_free_pages 5803462\noom_kill 7\nnuma_hit 1\n"


@pytest.mark.parametrize(
    ("events", "vmstat", "count"),
    [
        (EVENTS, VMSTAT, 2),
        (None, VMSTAT, 7),  # cgroup v1, or none
        ("low 0\nhigh 0\n", VMSTAT, 7),  # a kernel whose groups count something else
        (None, None, 0),
    ],
)
def test_who_counts(
    events: str | None,
    vmstat: str | None,
    count: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in (("_CGROUP_EVENTS", events), ("_VMSTAT", vmstat)):
        file = tmp_path / name
        monkeypatch.setattr(counting, name, file)
        if text is not None:
            file.write_text(text)

    assert oom_kills() == count
