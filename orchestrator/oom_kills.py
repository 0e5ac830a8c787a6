"""How often the kernel ended a process for want of memory: what SIGKILL alone does not tell."""

from __future__ import annotations

from pathlib import Path

_OWN = Path("/sys/fs/cgroup/memory.events")  # a container's own, under cgroup v2
_MACHINE = Path("/proc/vmstat")
_FIELD = "oom_kill"


def oom_kills() -> int:
    """Processes that the kernel's OOM killer ended so far, here or else on the whole machine.

    See Documentation/admin-guide/cgroup-v2.rst (memory.events) and mm/oom_kill.c, which counts
    those of any cgroup for the machine too. 0 where nobody counts.
    """
    for file in (_OWN, _MACHINE):
        try:
            lines = file.read_text().splitlines()
        except OSError:
            continue
        counts = dict(line.split(maxsplit=1) for line in lines)
        if _FIELD in counts:
            return int(counts[_FIELD])
    return 0
