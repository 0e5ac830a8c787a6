"""Races searches without forecasts whose first trials lie far apart, and whose do not.

    python -m benchmarks.search_start [DIR ...] [--seeds N] [--out FILE]

Both searches of a race have the same seed and draw the same repeats. Differences are means over
surfaces, with 95 % bootstrap intervals: `seeds` for these surfaces, `surfaces` for others like
them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import write
from benchmarks.published.product import forecaster_without
from benchmarks.search.competitors.ours import Plimsoll, without_forecasts
from benchmarks.search.races import NEAR, Race, race
from benchmarks.search.surfaces import Numbers, Surface, surfaces_in
from orchestrator.search.search import DISTANT_TRIALS

FOLDERS = (Path("benchmarks/surfaces/published"), Path("benchmarks/surfaces"))
TRIALS = 10  # of a race, at most
_LEAST = 9  # candidates of a surface
_DRAWS = 4000  # of the bootstrap
MEASURES: Mapping[str, Callable[[Race], float]] = {
    "regret_at_3": lambda one: one.regret_at(3),
    "regret_at_5": lambda one: one.regret_at(5),
    "regret_at_10": lambda one: one.regret_at(10),
    f"trials_to_2pct_of_{TRIALS}": lambda one: one.trials_to(NEAR),
    "oom_trials": lambda one: one.ran_out,
}
Races = tuple[Sequence[Race], Sequence[Race]]  # near, far


def races(surface: Surface, seeds: Sequence[int]) -> Races:
    """Races the surface without forecasts: first without a start far apart, then with it."""
    blind = without_forecasts(surface)
    near, far = (
        [race(blind, Plimsoll(blind, seed, distant), seed, TRIALS) for seed in seeds]
        for distant in (0, DISTANT_TRIALS)
    )
    return near, far


def figures(found: Mapping[str, Races]) -> dict[str, Any]:
    """Means over surfaces of both searches, and their differences with intervals."""
    return {
        name: compared(
            np.array([[measure(one) for one in near] for near, _ in found.values()], dtype=float),
            np.array([[measure(one) for one in far] for _, far in found.values()], dtype=float),
        )
        for name, measure in MEASURES.items()
    }


def summary(by_folder: Mapping[str, Mapping[str, Races]]) -> dict[str, Any]:
    """Figures of each folder, of all surfaces, and of each surface."""
    every = {name: found for folder in by_folder.values() for name, found in folder.items()}
    at_5 = {name: figures({name: found})["regret_at_5"] for name, found in every.items()}
    return {
        "seeds": max(len(near) for near, _ in every.values()),
        "surfaces": len(every),
        **{folder: figures(found) for folder, found in by_folder.items()},
        "all": figures(every),
        "by_surface": at_5,
    }


def compared(near: Numbers, far: Numbers) -> dict[str, Any]:
    """Compares paired values, each of shape (surfaces, seeds)."""
    difference = far - near
    rng, (surfaces, seeds) = np.random.default_rng(0), difference.shape
    by_seeds, by_surfaces = [], []
    for _ in range(_DRAWS):
        drawn = rng.integers(seeds, size=(surfaces, seeds))
        means = np.take_along_axis(difference, drawn, axis=1).mean(axis=1)
        by_seeds.append(means.mean())
        by_surfaces.append(means[rng.integers(surfaces, size=surfaces)].mean())
    return {
        "near": round(float(near.mean()), 4),
        "far": round(float(far.mean()), 4),
        "difference": round(float(difference.mean()), 4),
        "interval_seeds": _interval(by_seeds),
        "interval_surfaces": _interval(by_surfaces),
    }


def _interval(means: Sequence[float]) -> list[float]:
    return [round(float(end), 4) for end in np.quantile(means, [0.025, 0.975])]


def main() -> None:
    """Races and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=FOLDERS, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=50, help="races of each surface (50)")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    by_folder: dict[str, dict[str, Races]] = {}
    for folder in options.folders:
        by_folder[folder.name] = {}
        for surface in surfaces_in(folder, forecaster_without, least=_LEAST):
            by_folder[folder.name][surface.name] = races(surface, range(options.seeds))
            print(folder.name, surface.name, flush=True)
    write(summary(by_folder), options.out)


if __name__ == "__main__":
    main()
