"""Simulates sweeps from seeds, and checks that planted faults are found.

Usage: python -m benchmarks.simulation --sweeps 100000 --out benchmarks/results/simulation.json
"""

import multiprocessing
import os
import sys
from collections import Counter
from typing import Any

from benchmarks.output import command_line, write
from benchmarks.simulation.plants import PLANTS, Plant, plant
from benchmarks.simulation.simulate import simulate, simulate_range

_CHUNK = 250  # seeds
_SEEDS_FOR_PLANTS = 1000


def run(first: int, count: int, processes: int) -> dict[str, Any]:
    """Simulates `count` seeds and returns the figures."""
    faults, ends, violations = Counter[str](), Counter[str](), dict[int, str]()
    sums, seeds, seconds = Counter[str](), range(first, first + count), 0.0
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # small matrices: ten times faster than with two
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        chunks = [seeds[at : at + _CHUNK] for at in range(0, count, _CHUNK)]
        for reports, took in pool.imap_unordered(simulate_range, chunks):
            seconds += took
            for report in reports:
                faults += report.faults
                ends += report.ends
                sums.update(
                    events=report.events, trials=report.trials, drivers=report.drivers, sweeps=1
                )
                if report.violation is not None:
                    violations[report.seed] = report.violation
            sys.stderr.write(f"\r{sums['sweeps']} of {count} sweeps, {len(violations)} violations")
        pool.close()  # processes that end by themselves remove their folders
        pool.join()
    return {
        "seeds": [first, first + count - 1],
        **sums,
        "faults": sum(faults.values()),
        "faults_by_kind": dict(faults.most_common()),
        "ends_of_drivers": dict(ends.most_common()),
        "violations": len(violations),
        "violations_by_seed": dict(sorted(violations.items())),
        "core_seconds": round(seconds, 1),
        "sweeps_per_minute_and_core": round(60 * count / seconds) if seconds else None,
    }


def find_plants(processes: int) -> list[dict[str, Any]]:
    """Returns for each planted fault the first seed that finds it, and how."""
    context = multiprocessing.get_context("fork")  # each starts from the imported modules
    with context.Pool(processes, maxtasksperchild=1) as pool:
        return list(pool.imap(_first_seed, PLANTS))


def _first_seed(fault: Plant) -> dict[str, Any]:
    plant(fault)
    for seed in range(_SEEDS_FOR_PLANTS):
        violation = simulate(seed).violation
        if violation is not None:
            return {"fault": fault.name, "seed": seed, "found_by": violation}
    return {"fault": fault.name, "seed": None, "found_by": None}


def main() -> None:
    """Parses the command line."""
    parser = command_line(__doc__)
    parser.add_argument("--sweeps", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--no-plants", action="store_true", help="leave out the planted faults")
    arguments = parser.parse_args()
    figures = run(arguments.first, arguments.sweeps, arguments.processes)
    if not arguments.no_plants:
        figures["planted"] = find_plants(arguments.processes)
    write(figures, arguments.out)
    for name, value in figures.items():
        print(f"{name}: {value}")
    sys.exit(1 if figures["violations"] else 0)


if __name__ == "__main__":
    main()
