"""Command line that all parts share.

A part ends with 0 if all targets hold, 1 if one is missed, 75 if there is more to measure, by the
same command once more, and 2 if it cannot run here. Tiny runs judge nothing: they end with 0.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from benchmarks.gpu.found import Found, show, write
from benchmarks.gpu.lone_group import LoneGroup
from orchestrator.cli.console import print_error, print_line
from orchestrator.host import gpu_bytes_in_use, termination_as_interrupt
from search_spaces.errors import UserError

KEPT = Path("benchmarks/results/gpu")  # where figures of real GPUs are kept
TINY = Path("plimsoll-runs/gpu-tiny")
MINUTES = 9.0  # of a command, so that what is under way ends within ten
JUDGED = ("memory", "speed")  # parts that compare forecasts with plans.csv
AGAIN, MISSED, UNUSABLE = 75, 1, 2  # 75: EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The task of a part: where results go, how small, until when, on whose workers.

    `until` is in seconds of `clock`. `group` starts its worker when the first trial comes. With
    `short`, a first impression of a GPU is enough. With `judge`, what was measured before is judged
    again, by the forecasts of today, and nothing is measured. With `ray`, what users run under Ray
    is run under Ray.
    """

    out: Path
    tiny: bool
    until: float
    short: bool = False
    judge: bool = False
    group: LoneGroup = field(default_factory=LoneGroup)
    clock: Callable[[], float] = time.monotonic
    ray: bool = False

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """The device of trials: the GPU, or a CPU where sizes are tiny."""
        return "cpu" if self.tiny else "cuda"

    @property
    def left_seconds(self) -> float:
        """Until the time of this command is over; below 0 when it is."""
        return self.until - self.clock()

    def free_device(self) -> None:
        """Lets the worker go, so that others have the GPU to themselves; a CPU is shared."""
        if self.device == "cuda":
            self.group.stop()

    def has(self, seconds: float) -> bool:
        """Returns whether so much time is left."""
        return self.left_seconds >= seconds


Measure = Callable[[Asked], Found]


def run(part: str, doc: str | None, measure: Measure, typed: Sequence[str] | None = None) -> int:
    """Runs a part as its command line asks; returns the exit code.

    Args:
        part: Its name, which its files have too.
        doc: Its module's docstring.
        measure: What it does.
        typed: Arguments; those of the process if None.
    """
    given = _parser(part, doc).parse_args(typed)
    out: Path = given.out or (TINY if given.tiny else KEPT)
    if not given.tiny and not given.judge and not has_gpu():
        return UNUSABLE
    with _asked(out, given) as asked:
        try:
            found = measure(asked)
        except UserError as error:
            print_error(f"{part}: {error}")
            return UNUSABLE
    if not asked.judge:  # else its date and versions would be those of today
        write(found, part, out, tiny=asked.tiny, device=asked.device)
    show(found, tiny=asked.tiny)
    if not asked.judge:
        print_line(f"written to {out / part}.json" + (f" and {part}.csv" if found.rows else ""))
    return code_of(found, tiny=asked.tiny)


def has_gpu() -> bool:
    """Returns whether this machine has a CUDA GPU; says so if it has none."""
    if gpu_bytes_in_use():
        return True
    print_error(
        "no CUDA GPU can be reached here (NVML tells of none);"
        " --tiny runs the program on a CPU, with sizes that say nothing of speed"
    )
    return False


def code_of(found: Found, *, tiny: bool) -> int:
    """The exit code: what is left goes before what is missed."""
    if found.left:
        return AGAIN
    missed = any(verdict.holds is False for verdict in found.verdicts)
    return MISSED if missed and not tiny else 0


def main(part: str, doc: str | None, measure: Measure) -> None:
    """The `main` of a part."""
    sys.exit(run(part, doc, measure))


@contextlib.contextmanager
def _asked(out: Path, given: argparse.Namespace) -> Iterator[Asked]:
    """Yields the task of a part; its worker ends when the part does, by a signal too."""
    out.mkdir(parents=True, exist_ok=True)
    asked = Asked(
        out=out,
        tiny=given.tiny,
        short=given.short,
        judge=given.judge,
        until=time.monotonic() + 60 * given.minutes,
        ray=not given.tiny and importlib.util.find_spec("ray") is not None,
    )
    with termination_as_interrupt():
        try:
            yield asked
        finally:
            asked.group.stop()


def _parser(part: str, doc: str | None) -> argparse.ArgumentParser:
    first = (doc or "").splitlines()[0] if doc else None
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.gpu.{part}", description=first)
    parser.add_argument(
        "--out", type=Path, help=f"folder of the results; {KEPT}, or {TINY} with --tiny"
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU, as a test")
    parser.add_argument("--short", action="store_true", help="few plans, for a first impression")
    parser.set_defaults(judge=False)
    if part in JUDGED:
        parser.add_argument(
            "--judge",
            action="store_true",
            help="judge what the folder has by the forecasts of today; needs no GPU",
        )
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="nothing is begun that ends later"
    )
    return parser
