"""Coverage of a trial's interval under models of noise.

    python -m benchmarks.coverage [--trials N] [--out FILE]

Simulated: 0.3 s steps, objective as by default. No trial competes with an incumbent. Goals that
are missed are printed as missed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.noise import MODELS, STEP_SECONDS, NoiseModel, Numbers
from benchmarks.output import write
from workers.measure.interval import is_precise, mean_bounds
from workers.measure.steady import warmup_lengths

_SEED = 20261126
# goals: least coverage of the true mean in %, greatest bias of the rate in %
_COVERAGE_GOALS = {"independent": 90.0, "dependent": 80.0, "heavy": 80.0}
_BIAS_GOAL = 1.0

Figures = dict[str, float]
INTERVAL = 0.02  # objective.interval by default
MIN_WINDOWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Simulated trials, one element each: windows run, and the reported step time with bounds."""

    windows: NDArray[np.intp]
    value: Numbers
    low: Numbers
    high: Numbers


def simulate(series: Numbers) -> Trials:
    """Runs one trial on each row, a window a step, until the rule or the last step ends it."""
    rows, longest = series.shape
    windows = np.full(rows, longest)
    reported = np.zeros((3, rows))
    running = np.arange(rows)
    for length in range(MIN_WINDOWS, longest + 1):
        warmup = warmup_lengths(series[running, :length])
        ended = np.zeros(len(running), bool)
        for cut in np.unique(warmup):
            if length - cut < MIN_WINDOWS and length < longest:
                continue
            at = np.flatnonzero(warmup == cut)
            steady = series[running[at], cut:length]
            steps = np.ones_like(steady)
            ends = is_precise(steady, steps, INTERVAL) | (length == longest)
            ended[at] = ends
            reported[:, running[at[ends]]] = mean_bounds(steady[ends], steps[ends])
        windows[running[ended]] = length
        running = running[~ended]
        if not len(running):
            break
    return Trials(windows=windows, value=reported[0], low=reported[1], high=reported[2])


def figures_of(model: NoiseModel, series: Numbers) -> Figures:
    """The figures of the rule under one model: windows, %, seconds."""
    trials = simulate(series)
    run = np.arange(series.shape[1]) < trials.windows[:, None]
    covered = (trials.low <= model.mean) & (model.mean <= trials.high)
    return {
        "windows_median": float(np.median(trials.windows)),
        "half_width": _percent(np.median((trials.high - trials.low) / 2 / trials.value)),
        "coverage": _percent(covered.mean()),
        "rate_bias": _percent((model.mean / trials.value).mean() - 1),
        "seconds": round(float(STEP_SECONDS * (series * run).sum(axis=1).mean()), 2),
    }


def measure(trials: int) -> dict[str, Any]:
    """The figures of all models, and how they compare with the goals."""
    table: dict[str, Figures] = {}
    for number, (name, model) in enumerate(MODELS.items()):
        series = model.draw(np.random.default_rng([_SEED, number]), trials)
        table[name] = told = figures_of(model, series)
        print(
            f"{name:45}{told['windows_median']:3.0f} windows, +-{told['half_width']:4.1f} %, holds"
            f" the mean {told['coverage']:5.1f} %, rate {told['rate_bias']:+5.1f} %,"
            f" {told['seconds']:4.1f} s",
            flush=True,
        )
    return {"trials": trials, "models": table, "goals": list(_goals(table))}


def _goals(table: Mapping[str, Figures]) -> Iterator[dict[str, Any]]:
    for name, told in table.items():
        kind = MODELS[name].kind
        if goal := _COVERAGE_GOALS.get(kind):
            yield _goal(f"coverage in %, {name}", told["coverage"], goal, told["coverage"] >= goal)
        if kind == "stall":
            bias = told["rate_bias"]
            yield _goal(f"bias in %, {name}", bias, _BIAS_GOAL, abs(bias) <= _BIAS_GOAL)


def _goal(name: str, value: float, goal: float, met: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "goal": goal, "met": met}


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def main() -> None:
    """Parses the command line, simulates, and prints table and goals."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=2000, help="trials of each model")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = measure(arguments.trials)
    for goal in figures["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        print(f"{verdict:6} {goal['name']}: {goal['value']} (goal {goal['goal']})")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
