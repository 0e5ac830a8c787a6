"""The task of a part of the GPU's benchmarks."""

from __future__ import annotations

import importlib
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.worker import LoneWorker
from benchmarks.output import write
from orchestrator.host import system_facts
from search_spaces.errors import UserError

Figures = dict[str, Any]
SECONDS = 300.0  # of a part


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Folder of results, size and end of a part's run.

    `until` is in seconds of the monotonic clock. `worker` starts its process when the first trial
    comes.
    """

    out: Path
    tiny: bool
    until: float
    worker: LoneWorker = field(default_factory=LoneWorker)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device of trials: the GPU, or a CPU where sizes are tiny."""
        return "cpu" if self.tiny else "cuda"

    def has(self, seconds: float) -> bool:
        """Returns whether so much time is left; tiny runs always have it."""
        return self.tiny or self.until - time.monotonic() >= seconds


def run_part(part: str, out: Path, *, tiny: bool) -> bool:
    """Measures a part and writes its figures; False if it cannot run here."""
    task = Task(out=out, tiny=tiny, until=time.monotonic() + SECONDS)
    try:
        figures = importlib.import_module(f"benchmarks.gpu.{part}").measure(task)
    except UserError as error:
        print(f"{part}: {error}", file=sys.stderr)
        return False
    finally:
        task.worker.stop()
    gpus = [] if tiny else system_facts()["gpus"]
    write(figures | {"tiny": tiny, "gpus": gpus}, out / f"{part}.json")
    print(json.dumps({part: figures}, indent=2), flush=True)
    return True
