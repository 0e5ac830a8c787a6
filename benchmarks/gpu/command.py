"""What the command lines of all parts have in common.

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
AGAIN, MISSED, UNUSABLE = 75, 1, 2  # 75: EX_TEMPFAIL of sysexits.h


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a part is to do: where results go, how small, until when, on whose workers.

    `until` is in seconds of `clock`. `group` starts its worker when the first trial comes. With
    `ray`, what users run under Ray is run under Ray.
    """

    out: Path
    tiny: bool
    until: float
    group: LoneGroup = field(default_factory=LoneGroup)
    clock: Callable[[], float] = time.monotonic
    ray: bool = False

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where trials run: the GPU, or a CPU where sizes are tiny."""
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
        """Whether so much time is left."""
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
    if not given.tiny and not gpu_bytes_in_use():
        print_error(
            f"{part}: no CUDA GPU can be reached here (NVML tells of none);"
            " --tiny runs the program on a CPU, with sizes that say nothing of speed"
        )
        return UNUSABLE
    with _asked(out, tiny=given.tiny, minutes=given.minutes) as asked:
        try:
            found = measure(asked)
        except UserError as error:
            print_error(f"{part}: {error}")
            return UNUSABLE
    write(found, part, out, tiny=asked.tiny, device=asked.device)
    show(found, tiny=asked.tiny)
    print_line(f"written to {out / part}.json" + (f" and {part}.csv" if found.rows else ""))
    return code_of(found, tiny=asked.tiny)


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
def _asked(out: Path, *, tiny: bool, minutes: float) -> Iterator[Asked]:
    """What is asked for, with a worker that ends when the part does, by a signal too."""
    out.mkdir(parents=True, exist_ok=True)
    ray = not tiny and importlib.util.find_spec("ray") is not None
    asked = Asked(out=out, tiny=tiny, until=time.monotonic() + 60 * minutes, ray=ray)
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
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="nothing is begun that ends later"
    )
    return parser
