"""Fuzzes the command line and the specification with a grammar.

    python -m benchmarks.fuzzing --inputs 10000 --out benchmarks/results/fuzzing.json

Each input is a command line or a specification with odd values. None may end with a traceback, an
exit code that is not documented, no word, or not at all. The same seed draws the same inputs.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.fuzzing.campaign import merged, part
from benchmarks.output import write

PART = 500  # inputs with a seed of their own


def main() -> None:
    """Fuzzes, and writes the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first 500 inputs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    began = time.monotonic()
    shares = [PART] * (asked.inputs // PART) + [asked.inputs % PART] * bool(asked.inputs % PART)
    seeds = range(asked.seed, asked.seed + len(shares))
    parts: list[dict[str, Any]] = []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for one in pool.map(part, shares, seeds):
            parts.append(one)
            figures = merged(parts) | {"minutes": round((time.monotonic() - began) / 60, 1)}
            write(figures, asked.out)  # what has run stays
    sys.exit(1 if figures["faults"] else 0)


if __name__ == "__main__":
    main()
