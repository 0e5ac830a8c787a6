"""All parts in order, each as often as it has something left to measure.

    python -m benchmarks.gpu [--out DIR] [--short | --tiny] [--times N] [PART ...]

Each part is a command of its own, which ends within ten minutes; docs/gpu.md says what they
measure. Told last is what was to be reached over all of them, and what was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from benchmarks.gpu.command import AGAIN, KEPT, MISSED, TINY, UNUSABLE, has_gpu
from benchmarks.gpu.found import HOLDS
from orchestrator.cli.console import print_line, table_console
from orchestrator.report.sweep_tables import plain_table

PARTS = (  # what forecasts read goes first, and what the sweep found before what is made of it
    *("ceilings", "memory", "speed", "out_of_memory", "honesty"),
    *("sweep", "limit", "surfaces", "overhead"),
)
SHORT_PARTS = PARTS[:6]
TIMES = 30  # of one part, at most
Start = Callable[[Sequence[str]], int]


def run_parts(parts: Sequence[str], options: Sequence[str], times: int, start: Start) -> int:
    """Runs parts one after the other; the worst of their exit codes.

    Neither a part that cannot run nor one that misses a target ends the others; one that is not
    complete is started again.

    Args:
        parts: Names, in order.
        options: That each is given.
        times: How often a part is started at most.
        start: Runs a command line and gives its exit code.
    """
    worst = 0
    for part in parts:
        code = AGAIN
        for _ in range(times):
            if code != AGAIN:
                break
            print_line(f"--- {part}")
            code = start([sys.executable, "-m", f"benchmarks.gpu.{part}", *options])
        worst = max(worst, code if code in (0, AGAIN, UNUSABLE) else MISSED)
    return worst


def told(parts: Sequence[str], folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The verdicts of all parts that have written any."""
    found = []
    for part in parts:
        file = folder / f"{part}.json"
        if file.exists():
            verdicts = json.loads(file.read_text("utf-8"))["verdicts"]
            found += [(part, verdict) for verdict in verdicts]
    return found


def main() -> None:
    """Runs what is asked for, and tells all targets."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true", help="tiny models on a CPU, as a test")
    parser.add_argument("--times", type=int, default=TIMES, help="that a part is started at most")
    parser.add_argument("--short", action="store_true", help="a first impression, in 25 minutes")
    given = parser.parse_args()
    parts = given.parts or (SHORT_PARTS if given.short else PARTS)
    out = given.out or (TINY if given.tiny else KEPT)
    options = ["--out", str(out)]
    options += [f"--{name}" for name in ("tiny", "short") if getattr(given, name)]
    if not given.tiny and not has_gpu():
        sys.exit(UNUSABLE)
    code = run_parts(parts, options, given.times, _start)
    table = plain_table(
        ("part", False), ("target", False), ("asked", False), ("reached", False), ("", False)
    )
    for part, verdict in told(parts, out):
        cells = (part, verdict["what"], verdict["asked"], verdict["reached"] or "-")
        table.add_row(*map(Text, cells), Text(HOLDS[verdict["holds"]]))
    table_console().print(table)
    sys.exit(code)


def _start(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    main()
