"""Counts how often the regret bound is true, by the factor that widens the search's deviations.

    python -m benchmarks.regret_bound [DIR ...] [--seeds N] [--out FILE]

A race searches a random 80 % of a surface from a random first trial, with the forecasts of the
surface and without any. After 5, 10 and 20 trials the regret bound is compared with the fastest
untried candidate. The race is open if that candidate is faster than the incumbent; elsewhere any
bound is true. The widening of the product is the smallest that is true in 90 % of open races.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import write
from benchmarks.published.product import forecaster_without
from benchmarks.search.competitors.ours import Plimsoll, without_forecasts
from benchmarks.search.surfaces import Numbers, Surface, surfaces_in

FOLDERS = (Path("benchmarks/surfaces/published"), Path("benchmarks/surfaces"))
AFTER = (5, 10, 20)  # trials after which the bound is checked
WIDENINGS = (1.0, 1.5, 2.0, 2.5, 3.0)
_SHARE = 0.8  # of a surface's candidates that a race searches
_LEAST = 9  # candidates of a surface


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One look at a race.

    `gain` is the true ratio of the fastest untried candidate to the incumbent; 0 if none runs.
    `bounds` has the regret bound of each widening.
    """

    surface: str
    forecasts: bool
    trials: int
    gain: float
    bounds: tuple[float, ...]

    @property
    def is_open(self) -> bool:
        """True if an untried candidate is faster than the incumbent."""
        return self.gain > 1


def true_log_rates(surface: Surface) -> Numbers:
    """Estimates the candidates' throughputs, as logarithms; nan where a candidate does not run.

    The largest of many noisy means was lucky, so each mean is shrunk to that of the surface by the
    share of its variance that is noise.

    Source:
        James & Stein 1961, Estimation with quadratic loss.
    """
    means = np.log(surface.rate)
    repeats = np.array([len(trials) for trials in surface.trials])
    noise = surface.noise**2 / repeats
    spread = max(float(np.nanvar(means) - noise[~np.isnan(means)].mean()), 1e-6)
    center = float(np.nanmean(means))
    shrunk: Numbers = center + (means - center) * spread / (spread + noise)
    return shrunk


def checks(surface: Surface, seed: int, widenings: Sequence[float] = WIDENINGS) -> Iterator[Check]:
    """Searches a part of a surface, and checks the bound on the way."""
    chosen, drawn = (np.random.default_rng([seed, stream]) for stream in (5, 2))
    free = np.zeros(len(surface), dtype=bool)
    free[chosen.choice(len(surface), round(_SHARE * len(surface)), replace=False)] = True
    truth, search = true_log_rates(surface), Plimsoll(surface, seed)
    row = int(chosen.choice(np.flatnonzero(free)))
    for trials in range(1, AFTER[-1] + 1):
        free[row] = False
        repeats = surface.trials[row]
        search.tell(row, repeats[int(drawn.integers(len(repeats)))])
        if not free.any():
            return
        row = search.next(free)
        if trials in AFTER and search.incumbent is not None:
            untried = truth[free]
            best = np.nanmax(untried) if np.isfinite(untried).any() else -np.inf
            bounds = (search.regret_bound(free, widening) for widening in widenings)
            yield Check(
                surface=surface.name,
                forecasts=surface.log_rate is not None,
                trials=trials,
                gain=math.exp(best - truth[search.incumbent]),
                bounds=tuple(bound for bound in bounds if bound is not None),
            )


def figures(found: Sequence[Check], widenings: Sequence[float] = WIDENINGS) -> dict[str, Any]:
    """Counts races and open ones, and of each widening the true sentences and the median bound."""
    opened = [check for check in found if check.is_open]
    return {
        "races": len(found),
        "open": len(opened),
        "by_widening": {
            f"{widening:g}": {
                "true": _true_share(found, at),
                "true_where_open": _true_share(opened, at),
                "median_bound": round(float(np.median([one.bounds[at] for one in found])), 4),
                "below_1_percent": round(
                    float(np.mean([one.bounds[at] < 1.01 for one in found])), 3
                ),
            }
            for at, widening in enumerate(widenings)
        },
    }


def _true_share(found: Sequence[Check], at: int) -> float | None:
    if not found:
        return None
    return round(float(np.mean([check.gain <= check.bounds[at] for check in found])), 3)


def by_kind(found: Mapping[str, Sequence[Check]]) -> dict[str, Any]:
    """Groups the checks of each folder by forecasts and trials; `all` has every check."""
    groups: dict[str, list[Check]] = defaultdict(list)
    for folder, folder_checks in found.items():
        for check in folder_checks:
            forecasts = "forecasts" if check.forecasts else "no forecasts"
            groups[f"{folder}, {forecasts}, after {check.trials}"].append(check)
            groups[f"all, after {check.trials}"].append(check)
            groups["all"].append(check)
    return {name: figures(group) for name, group in groups.items()}


def main() -> None:
    """Races and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="*", type=Path, default=FOLDERS, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=12, help="races of each surface (12)")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    found: dict[str, list[Check]] = {}
    for folder in options.folders:
        found[folder.name] = []
        for surface in surfaces_in(folder, forecaster_without, least=_LEAST):
            variants = [without_forecasts(surface)]
            if surface.log_rate is not None:
                variants.append(surface)
            for variant in variants:
                for seed in range(options.seeds):
                    found[folder.name] += checks(variant, seed)
            print(folder.name, surface.name, flush=True)
    write({"seeds": options.seeds, "by_kind": by_kind(found)}, options.out)


if __name__ == "__main__":
    main()
