"""Simulated sweeps keep their invariants, and the simulation finds what is planted."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.simulation.plants import PLANTS, Plant
from benchmarks.simulation.simulate import simulate

SWEEPS = {"quick": 60, "thorough": 1000}
# Seeds of faults that the simulation found; all but the last, which is rare, are planted again
FOUND = {
    26: "a second trial for a kind of nodes displaced the one that waited",
    23: "a driver that had lost its lock went on after another one had written",
    538: "a head that died after its sweep had ended ended it twice",
    148: "trials started in the step whose write failed",
    10: "a check of the machine took the place of a trial of the budget",
    16: "a retry ran on the node where its group had died without a report",
    3754: "a head that died after the study became unavailable ended the sweep beside a trial",
}
# Faults to plant by default, with a seed that finds each soon
SOON = (  # found within the first hundred sweeps
    "one trial more than the budget",
    "a validation starts beside trials",
    "workers on other nodes are kept",
    "a driver whose head died leaves its trials running",
)
_PLANTED = """
import sys
from benchmarks.simulation.plants import PLANTS, plant
from benchmarks.simulation.simulate import simulate
plant(next(one for one in PLANTS if one.name == sys.argv[1]))
print(next(filter(None, (simulate(seed).violation for seed in range(100))), None))
"""


@pytest.mark.parametrize("length", ["quick", pytest.param("thorough", marks=pytest.mark.thorough)])
def test_sweeps_keep_their_invariants(length: str) -> None:
    violations = {
        report.seed: report.violation
        for report in map(simulate, range(SWEEPS[length]))
        if report.violation is not None
    }

    assert violations == {}


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.get)
def test_what_was_found_stays_mended(seed: int) -> None:
    assert simulate(seed).violation is None


def test_a_seed_draws_the_same_sweep_each_time() -> None:
    assert [simulate(seed) for seed in (5, 40)] == [simulate(seed) for seed in (5, 40)]


@pytest.mark.thorough
@pytest.mark.parametrize("fault", SOON)
def test_a_planted_fault_is_found(fault: str) -> None:
    """The simulation runs in a process of its own, which keeps the fault."""
    ran = subprocess.run(
        [sys.executable, "-c", _PLANTED, fault], capture_output=True, text=True, check=True
    )

    assert ran.stdout.strip() != "None"


@pytest.mark.parametrize("fault", PLANTS, ids=lambda fault: fault.name)
def test_every_fault_can_still_be_planted(fault: Plant) -> None:
    """Its passage occurs once in the module that it changes."""
    found = importlib.util.find_spec(fault.module)

    assert found is not None
    assert found.origin is not None
    assert Path(found.origin).read_text(encoding="utf-8").count(fault.old) == 1


@pytest.mark.thorough
def test_every_planted_fault_is_found_within_a_thousand_seeds() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "benchmarks.simulation", "--sweeps", "1"],
        capture_output=True,
        text=True,
        check=True,
    )

    assert len(PLANTS) >= 10
    assert ran.stdout.count("'seed': ") == len(PLANTS)
    assert "'seed': None" not in ran.stdout
