"""Records a process's uncaught exception, so that a failed run can name its first error.

Uses only the standard library, since the failure may be an import.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType

_LAUNCHERS = ("torchrun", "accelerate")  # they raise too once a rank has failed
_MAX_CHARACTERS = 1000  # of a message


def record_failures(folder: Path) -> None:
    """Makes this process write an uncaught exception to a file in `folder`."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if Path(sys.argv[0]).name not in _LAUNCHERS:
            text = json.dumps(_failure(error))
            file = folder / f"{os.uname().nodename}-{os.getpid()}.failed"
            file.write_text(text, encoding="utf-8")
        previous(kind, error, trace)

    sys.excepthook = hook


def _failure(error: BaseException) -> dict[str, object]:
    """Fields of `search_spaces.settings.observed_run.ObservedFailure`."""
    rank = int(os.environ.get("RANK", "0"))
    by_rank = getattr(error, "worker_failures", None)  # of Ray Train's WorkerGroupError
    if by_rank:
        rank = min(by_rank)
        error = by_rank[rank]
        error = getattr(error, "_base_exc", error)
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    message = " ".join(str(error).split())[:_MAX_CHARACTERS]
    return {
        "at": time.time(),
        "rank": rank,
        "error": f"{type(error).__name__}: {message}" if message else type(error).__name__,
        "where": where,
    }
