"""Simulated sweeps keep their invariants, and the simulation finds what is planted."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.simulation.plants import PLANTS
from benchmarks.simulation.simulate import simulate

SWEEPS = 500
# Seeds of faults that the simulation found; each is planted again in `benchmarks.simulation.plants`
FOUND = {
    645: "a second trial for a kind of nodes displaced the one that waited",
    609: "a driver that had lost its lock went on after another one had written",
    24: "trials started in the step whose write failed",
}
# Faults to plant by default, with a seed that finds each soon
SOON = {
    "one trial more than the budget": 1,
    "a validation starts beside trials": 3,
    "workers on other nodes are kept": 0,
}
_PLANTED = """
import sys
from benchmarks.simulation.plants import PLANTS, plant
from benchmarks.simulation.simulate import simulate
plant(next(one for one in PLANTS if one.name == sys.argv[1]))
print(simulate(int(sys.argv[2])).violation)
"""


def test_sweeps_keep_their_invariants() -> None:
    violations = {
        report.seed: report.violation
        for report in map(simulate, range(SWEEPS))
        if report.violation is not None
    }

    assert violations == {}


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.get)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert simulate(seed).violation is None


def test_a_seed_draws_the_same_sweep_each_time() -> None:
    assert [simulate(seed) for seed in (5, 40)] == [simulate(seed) for seed in (5, 40)]


@pytest.mark.parametrize("fault", SOON)
def test_a_planted_fault_is_found(fault: str) -> None:
    """In a process of its own, which keeps the fault."""
    ran = subprocess.run(
        [sys.executable, "-c", _PLANTED, fault, str(SOON[fault])],
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.strip() != "None"


@pytest.mark.thorough
def test_every_planted_fault_is_found_within_a_thousand_seeds() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulation", "--sweeps", "0"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(PLANTS) >= 10
    assert ran.stdout.count("'seed': ") == len(PLANTS)
    assert "'seed': None" not in ran.stdout
