"""Command line that all parts share.

A part ends with 0, with 75 if there is more to measure by the same command, and with 2 if it
cannot run here. It writes `PART.json` by `benchmarks.output`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.worker import LoneWorker
from benchmarks.output import write
from orchestrator.cli.console import print_error
from orchestrator.host import gpu_bytes_in_use, system_facts, termination_as_interrupt
from search_spaces.errors import UserError

KEPT = Path("benchmarks/results/gpu")  # where figures of real GPUs are kept
TINY = Path("plimsoll-runs/gpu-tiny")
MINUTES = 5.0  # of a part
AGAIN, UNUSABLE = 75, 2  # 75: EX_TEMPFAIL of sysexits.h
_MOST_ROWS = 12  # that are printed


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The task of a part: where results go, how small, until when, on whose worker.

    `until` is in seconds of the monotonic clock. `worker` starts its process when the first trial
    comes. With `judge`, what was measured before is judged again, by the forecasts of today.
    """

    out: Path
    tiny: bool
    until: float
    judge: bool = False
    worker: LoneWorker = field(default_factory=LoneWorker)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device of trials: the GPU, or a CPU where sizes are tiny."""
        return "cpu" if self.tiny else "cuda"

    def has(self, seconds: float) -> bool:
        """Returns whether so much time is left; tiny runs always have it."""
        return self.tiny or self.until - time.monotonic() >= seconds


Figures = dict[str, Any]  # "rows" are trials or plans; "left" says what is still to be measured
Measure = Callable[[Asked], Figures]


def run(part: str, doc: str | None, measure: Measure, typed: Sequence[str] | None = None) -> int:
    """Runs a part as its command line asks; returns the exit code.

    Args:
        part: Its name, which its file has too.
        doc: Its module's docstring.
        measure: What it does.
        typed: Arguments; those of the process if None.
    """
    asked = _parse(part, doc, typed)
    if not asked.tiny and not asked.judge and not has_gpu():
        return UNUSABLE
    asked.out.mkdir(parents=True, exist_ok=True)
    with termination_as_interrupt():
        try:
            figures = measure(asked)
        except UserError as error:
            print_error(f"{part}: {error}")
            return UNUSABLE
        finally:
            asked.worker.stop()
    if not asked.judge:  # else its date and versions would be those of today
        gpus = system_facts()["gpus"] if asked.device == "cuda" else []
        where = {"part": part, "tiny": asked.tiny, "device": asked.device, "gpus": gpus}
        write(figures | where, asked.out / f"{part}.json")
    shown = figures | {"rows": figures.get("rows", [])[:_MOST_ROWS]}
    print(json.dumps(shown, indent=2))
    return AGAIN if figures.get("left") else 0


def has_gpu() -> bool:
    """Returns whether this machine has a CUDA GPU; says so if it has none."""
    if gpu_bytes_in_use():
        return True
    print_error(
        "no CUDA GPU can be reached here (NVML tells of none);"
        " --tiny runs the program on a CPU, with sizes that say nothing of speed"
    )
    return False


def main(part: str, doc: str | None, measure: Measure) -> None:
    """The `main` of a part."""
    sys.exit(run(part, doc, measure))


def _parse(part: str, doc: str | None, typed: Sequence[str] | None) -> Asked:
    parser = argparse.ArgumentParser(
        prog=f"python -m benchmarks.gpu.{part}", description=(doc or "").partition("\n")[0]
    )
    add_options(parser)
    parser.add_argument(
        "--judge", action="store_true", help="judge what the folder has by the forecasts of today"
    )
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in which trials begin")
    given = parser.parse_args(typed)
    return Asked(
        out=given.out or (TINY if given.tiny else KEPT),
        tiny=given.tiny,
        judge=given.judge,
        until=time.monotonic() + 60 * given.minutes,
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that a part and all parts together have."""
    parser.add_argument(
        "--out", type=Path, help=f"folder of the results; {KEPT}, or {TINY} with --tiny"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU, as a test")
