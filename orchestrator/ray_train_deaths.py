"""How Ray Train says that a group of workers ended, as a plain value."""

from __future__ import annotations

import re

from ray.exceptions import OutOfMemoryError, RayActorError
from ray.train.v2.api.exceptions import WorkerGroupError

from orchestrator.core.endings import Death

_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_TRACEBACK = ", line "  # File "...", line 7, in f


def death_of(error: Exception | None, doing: str) -> Death:
    """What Ray says of the end of a group: the cause goes before its echoes."""
    if error is None:
        return Death(doing=doing, host_memory=False, rank=None, detail="the workers left")
    failures = error.worker_failures if isinstance(error, WorkerGroupError) else {}
    causes = {rank: _root(failure) for rank, failure in failures.items()}
    for kind in (OutOfMemoryError, RayActorError, Exception):
        for rank, cause in causes.items():
            if isinstance(cause, kind):
                memory = isinstance(cause, OutOfMemoryError)
                return Death(doing=doing, host_memory=memory, rank=rank, detail=_line(cause))
    return Death(doing=doing, host_memory=False, rank=None, detail=_line(error))


def _root(failure: Exception) -> Exception:
    """What a failed health check of Ray Train found, or the failure itself."""
    found = getattr(failure, "health_check_failure", None)
    return found if isinstance(found, Exception) else failure


def _line(error: Exception) -> str:
    """What is said of an error; of one that holds a traceback, its end, which names the cause."""
    plain = _COLORS.sub("", str(error)).strip()
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    told = [lines[0], lines[-1]] if _TRACEBACK in plain else lines
    return f"{type(error).__name__}: {' '.join(told)[:300]}"
