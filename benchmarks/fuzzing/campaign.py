"""Fuzzes with many inputs, and counts how they ended."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzzing.grammar import command_lines, specifications
from tests.fuzzing.run import Ending, OddFolder, odd_folder, run_line

LONGEST = 5  # inputs that took longest, in the figures


def fuzz(folder: OddFolder, inputs: int, number: int) -> dict[str, Any]:
    """Returns the figures of a number of inputs."""
    codes, commands = Counter[str](), Counter[str]()
    faults: dict[str, str] = {}
    slow: list[tuple[float, str]] = []

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
        ending: Ending = run_line(folder, words, specification)
        codes[str(ending.code)] += 1
        commands[words[0]] += 1
        shown = f"{words!r} {'' if specification is None else specification[:300]!r}"
        slow.append((round(ending.seconds, 2), shown[:300]))
        slow.sort(reverse=True)
        del slow[LONGEST:]
        if ending.fault and faults.setdefault(ending.fault[-300:], shown) is shown:
            sys.stderr.write(f"{shown}\n{ending.fault}\n\n")
        if sum(codes.values()) % 500 == 0:
            sys.stderr.write(f"{sum(codes.values())} inputs, {len(faults)} faults\n")

    one()
    return {
        "inputs": sum(codes.values()),
        "seed": number,
        "exit_codes": dict(sorted(codes.items())),
        "commands": dict(commands.most_common()),
        "faults": faults,
        "slowest_seconds": slow,
    }


def part(inputs: int, number: int) -> dict[str, Any]:
    """Fuzzes in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, odd_folder(Path(folder)) as odd:
        return fuzz(odd, inputs, number)


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the figures of several parts as those of one."""
    slow = sorted((one for part in parts for one in part["slowest_seconds"]), reverse=True)
    codes, commands = Counter[str](), Counter[str]()
    for part in parts:
        codes.update(part["exit_codes"])
        commands.update(part["commands"])
    return {
        "inputs": sum(part["inputs"] for part in parts),
        "seeds": [part["seed"] for part in parts],
        "exit_codes": dict(sorted(codes.items())),
        "commands": dict(commands.most_common()),
        "faults": {fault: line for part in parts for fault, line in part["faults"].items()},
        "slowest_seconds": slow[:LONGEST],
    }
