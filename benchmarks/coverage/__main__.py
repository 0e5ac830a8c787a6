"""Coverage of a trial's interval under models of noise.

    python -m benchmarks.coverage [--trials N] [--out FILE]

Simulated: 0.3 s steps, objective as by default, without and with ten earlier trials on the CPU. No
trial competes with an incumbent. Goals that are missed are printed as missed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.apart import by_seconds
from benchmarks.coverage.noise import MODELS, STEP_SECONDS, NoiseModel, Numbers
from benchmarks.output import command_line, write
from search_spaces.hardware.noise import Noise, noise_prior
from workers.measure.interval import is_precise, mean_bounds, stall_seconds
from workers.measure.steady import warmup_length, warmup_lengths

_SEED = 20261126
# goals: least coverage of the true mean in %, greatest bias of the rate in %
_COVERAGE_GOALS = {"independent": 90.0, "dependent": 80.0, "heavy": 80.0}
_BIAS_GOAL = 1.0

Figures = dict[str, float]
INTERVAL = 0.02  # objective.interval by default
MIN_WINDOWS = 12
_EARLIER, _LATER = 10, 100  # trials of a machine: its history, and those that have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Simulated trials, one element each: windows run, and the reported step time with bounds."""

    windows: NDArray[np.intp]
    value: Numbers
    low: Numbers
    high: Numbers


def simulate(series: Numbers, noise: Noise | None = None) -> Trials:
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
            ends = is_precise(steady, steps, INTERVAL, noise) | (length == longest)
            ended[at] = ends
            reported[:, running[at[ends]]] = mean_bounds(steady[ends], steps[ends], noise)
        windows[running[ended]] = length
        running = running[~ended]
        if not len(running):
            break
    return Trials(windows=windows, value=reported[0], low=reported[1], high=reported[2])


def learned(series: Numbers) -> Noise:
    """Noise of a CPU on which these series were trials."""
    seconds = stalled = 0.0
    for row, windows in zip(series, simulate(series).windows, strict=True):
        steady = row[warmup_length(row[:windows]) : windows].tolist()
        seconds += sum(steady)
        stalled += stall_seconds(steady, [1] * len(steady))
    return replace(noise_prior("cpu"), seconds=seconds, stall_seconds=stalled)


def with_history(model: NoiseModel, random: np.random.Generator, trials: int) -> Figures:
    """The mean figures of machines, each with trials before those that count."""
    rows = list[Figures]()
    for _ in range(0, trials, _LATER):
        noise = learned(model.draw(random, _EARLIER))
        rows.append(figures_of(model, model.draw(random, min(trials, _LATER)), noise))
    return {name: round(float(np.mean([row[name] for row in rows])), 2) for name in rows[0]}


def figures_of(model: NoiseModel, series: Numbers, noise: Noise | None = None) -> Figures:
    """The figures of the rule under one model: windows, %, seconds."""
    trials = simulate(series, noise)
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
        random = np.random.default_rng([_SEED, number])
        table[name] = figures_of(model, model.draw(random, trials))
        table[f"{name}, with history"] = with_history(model, random, trials)
    apart = dict(by_seconds())
    for name, told in (*table.items(), *apart.items()):
        print(f"{name:60}{told}")
    return {"trials": trials, "models": table, "apart": apart, "goals": list(_goals(table))}


def _goals(table: Mapping[str, Figures]) -> Iterator[dict[str, Any]]:
    for name, told in table.items():
        kind = MODELS[name.removesuffix(", with history")].kind
        value, bias = told["coverage"], told["rate_bias"]
        if goal := _COVERAGE_GOALS.get(kind):
            met = value >= goal
            yield {"name": f"coverage in %, {name}", "value": value, "goal": goal, "met": met}
        if kind == "stall":
            met = abs(bias) <= _BIAS_GOAL
            yield {"name": f"bias in %, {name}", "value": bias, "goal": _BIAS_GOAL, "met": met}


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def main() -> None:
    """Parses the command line, simulates, and prints table and goals."""
    parser = command_line(__doc__)
    parser.add_argument("--trials", type=int, default=2000, help="trials of each model")
    arguments = parser.parse_args()
    figures = measure(arguments.trials)
    for goal in figures["goals"]:
        verdict = "met" if goal["met"] else "MISSED"
        print(f"{verdict:6} {goal['name']}: {goal['value']} (goal {goal['goal']})")
    write(figures, arguments.out)


if __name__ == "__main__":
    main()
