"""Coverage of a trial's interval under models of noise, by today's rule and the one before it.

    python -m benchmarks.coverage [--trials N] [--out FILE]

Simulated: 0.3 s steps, objective as by default. No trial competes with an incumbent. Goals that
are missed are printed as missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.coverage.noise import MODELS, STEP_SECONDS, NoiseModel, Numbers
from benchmarks.coverage.rules import MeanRule, MedianRule, Rule, simulate
from benchmarks.output import write

_RULES: Mapping[str, Rule] = {"before": MedianRule(), "now": MeanRule()}
_SEED = 20261126
# goals: least coverage of the true mean in %, greatest bias of the rate in %, greatest ratio
_COVERAGE_GOALS = {"independent": 90.0, "dependent": 80.0, "heavy": 80.0}
_BIAS_GOAL, _SECONDS_GOAL = 1.0, 1.3

Figures = dict[str, float]


def figures_of(model: NoiseModel, rule: Rule, series: Numbers) -> Figures:
    """The figures of one rule under one model: windows, %, seconds."""
    trials = simulate(rule, series)
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
    """The figures of all models and rules, and how they compare with the goals."""
    table: dict[str, dict[str, Figures]] = {}
    for number, (name, model) in enumerate(MODELS.items()):
        series = model.draw(np.random.default_rng([_SEED, number]), trials)
        table[name] = {label: figures_of(model, rule, series) for label, rule in _RULES.items()}
        sys.stdout.write(f"{_line(name, table[name])}\n")
        sys.stdout.flush()
    return {
        "trials": trials,
        "models": table,
        "goals": list(_goals(table)),
        "seconds_now_over_before": {
            name: round(rules["now"]["seconds"] / rules["before"]["seconds"], 2)
            for name, rules in table.items()
        },
    }


def _goals(table: Mapping[str, Mapping[str, Figures]]) -> Iterator[dict[str, Any]]:
    for name, rules in table.items():
        kind, now = MODELS[name].kind, rules["now"]
        if goal := _COVERAGE_GOALS.get(kind):
            yield _goal(f"coverage in %, {name}", now["coverage"], goal, now["coverage"] >= goal)
        if kind == "stall":
            bias = now["rate_bias"]
            yield _goal(f"bias in %, {name}", bias, _BIAS_GOAL, abs(bias) <= _BIAS_GOAL)
    steady = [rules for name, rules in table.items() if MODELS[name].kind == "independent"]
    seconds = {label: sum(rules[label]["seconds"] for rules in steady) for label in _RULES}
    ratio = round(seconds["now"] / seconds["before"], 3)
    label = "seconds of all independent models, now over before"
    yield _goal(label, ratio, _SECONDS_GOAL, ratio <= _SECONDS_GOAL)


def _goal(name: str, value: float, goal: float, met: bool) -> dict[str, Any]:
    return {"name": name, "value": value, "goal": goal, "met": met}


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def _line(name: str, rules: Mapping[str, Figures]) -> str:
    parts = (
        f"{label}: {f['windows_median']:3.0f} windows, +-{f['half_width']:4.1f} %, holds the mean"
        f" {f['coverage']:5.1f} %, rate {f['rate_bias']:+5.1f} %, {f['seconds']:4.1f} s"
        for label, f in rules.items()
    )
    return f"{name:45}{' | '.join(parts)}"


def main() -> None:
    """Parses the command line, simulates, and prints table and goals."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--trials", type=int, default=2000, help="trials of each model")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    figures = measure(arguments.trials)
    for goal in figures["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        sys.stdout.write(f"{verdict:6} {goal['name']}: {goal['value']} (goal {goal['goal']})\n")
    ratios = figures["seconds_now_over_before"].items()
    sys.stdout.write(f"seconds: {', '.join(f'{name} x {ratio}' for name, ratio in ratios)}\n")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
