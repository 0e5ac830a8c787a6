"""All parts in order, within half an hour.

    python -m benchmarks.gpu [--out DIR] [--tiny] [PART ...]

Each part is a command of its own, which begins nothing after five minutes; a later run of it goes
on with what it has left.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence

from benchmarks.gpu.command import UNUSABLE, add_options, has_gpu

PARTS = (  # what forecasts read goes first
    *("ceilings", "memory", "speed", "honesty", "overhead", "trainer_defaults"),
)
Start = Callable[[Sequence[str]], int]


def run_parts(parts: Sequence[str], options: Sequence[str], start: Start) -> int:
    """Runs parts one after the other, none of which ends the others; the worst exit code."""
    codes = []
    for part in parts:
        print(f"--- {part}", flush=True)
        codes.append(start([sys.executable, "-m", f"benchmarks.gpu.{part}", *options]))
    return max(codes, default=0)


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    add_options(parser)
    given = parser.parse_args()
    options = ["--tiny"] if given.tiny else []
    if given.out is not None:
        options += ["--out", str(given.out)]
    if not given.tiny and not has_gpu():
        sys.exit(UNUSABLE)
    sys.exit(run_parts(given.parts or PARTS, options, _start))


def _start(command: Sequence[str]) -> int:
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    main()
