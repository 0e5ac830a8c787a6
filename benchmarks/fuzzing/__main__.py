"""Fuzzes the command line and the specification with a grammar.

    python -m benchmarks.fuzzing --inputs 10000 --out benchmarks/results/fuzzing.json

Each input is a command line or a specification with odd values. None may end with a traceback, an
exit code that is not documented, no word, or not at all. The same seed draws the same inputs.
"""

import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.output import command_line, write
from tests.fuzzing.grammar import command_lines, specifications
from tests.fuzzing.run import odd_folder, run_line

PART = 500  # inputs with a seed of their own
LONGEST = 5  # inputs that took longest, in the figures


def fuzz(inputs: int, number: int) -> dict[str, Any]:
    """Returns the figures of a number of inputs, in a folder of their own."""
    codes, commands = Counter[str](), Counter[str]()
    faults: dict[str, str] = {}
    slow: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as place, odd_folder(Path(place)) as folder:

        @seed(number)
        @settings(
            max_examples=inputs,
            database=None,
            deadline=None,
            phases=[Phase.generate],  # faults are collected, not shrunk
            suppress_health_check=list(HealthCheck),
        )
        @given(words=command_lines(), specification=st.none() | specifications())
        def one(words: list[str], specification: bytes | None) -> None:
            ending = run_line(folder, words, specification)
            codes[str(ending.code)] += 1
            commands[words[0]] += 1
            shown = f"{words!r} {'' if specification is None else specification[:300]!r}"
            slow.append((round(ending.seconds, 2), shown[:300]))
            if ending.fault and faults.setdefault(ending.fault[-300:], shown) is shown:
                sys.stderr.write(f"{shown}\n{ending.fault}\n\n")

        one()
    return {
        "codes": codes,
        "commands": commands,
        "faults": faults,
        "slow": sorted(slow, reverse=True)[:LONGEST],
    }


def main() -> None:
    """Fuzzes, and writes the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first 500 inputs")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    shares = [PART] * (asked.inputs // PART) + [asked.inputs % PART] * bool(asked.inputs % PART)
    seeds = range(asked.seed, asked.seed + len(shares))
    codes, commands = Counter[str](), Counter[str]()
    faults: dict[str, str] = {}
    slow: list[tuple[float, str]] = []
    with ProcessPoolExecutor(asked.processes, mp_context=get_context("spawn")) as pool:
        for part in pool.map(fuzz, shares, seeds):
            codes += part["codes"]
            commands += part["commands"]
            faults |= part["faults"]
            slow = sorted([*slow, *part["slow"]], reverse=True)[:LONGEST]
            figures = {
                "inputs": codes.total(),
                "seeds": [*seeds],
                "exit_codes": dict(sorted(codes.items())),
                "commands": dict(commands.most_common()),
                "faults": faults,
                "slowest_seconds": slow,
            }
            write(figures, asked.out)  # what has run stays
            print(f"{codes.total()} inputs, {len(faults)} faults", flush=True)
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
