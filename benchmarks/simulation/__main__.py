"""Simulates sweeps from seeds, and checks that planted faults are found.

Usage: python -m benchmarks.simulation --sweeps 100000 --out benchmarks/results/simulation.json
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from pathlib import Path

from benchmarks.output import write
from benchmarks.simulation.many import find_plants, run


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--no-plants", action="store_true", help="leave out the planted faults")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = run(arguments.first, arguments.sweeps, arguments.processes)
    if not arguments.no_plants:
        figures["planted"] = find_plants(arguments.processes)
    write(figures, arguments.out)
    for name, value in figures.items():
        sys.stdout.write(f"{name}: {value}\n")
    sys.exit(1 if figures["violations"] else 0)


if __name__ == "__main__":
    main()
