"""Races: how soon each rival comes near the best of a surface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search.rivals import AbstractRival
from benchmarks.search.surfaces import Numbers, Surface

AFTER = (5, 10, 20, 40)  # trials after which regret is told


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Race:
    """One search of one surface to its end.

    `regret` after each trial is 1 - best throughput so far / best of the surface.
    """

    regret: Numbers
    ran_out: int  # trials that ran out or failed before the best within 2 % was found

    def trials_to(self, share: float) -> int:
        """The first trial that came so near to the best."""
        return int(np.argmax(self.regret <= share)) + 1


def race(surface: Surface, rival: AbstractRival) -> Race:
    """Measures one candidate after the other until the best is found."""
    free = np.ones(len(surface), dtype=bool)
    regret, best, ran_out = [], 0.0, 0
    while free.any() and (not regret or regret[-1] > 0):
        row = rival.next(free)
        free[row] = False
        rate = None if np.isnan(surface.rate[row]) else float(surface.rate[row])
        rival.tell(row, rate)
        if rate is None and (not regret or regret[-1] > 0.02):
            ran_out += 1
        best = max(best, rate or 0.0)
        regret.append(1 - best / surface.best)
    return Race(regret=np.array(regret), ran_out=ran_out)


def figures(races: Sequence[Race]) -> dict[str, Any]:
    """Medians of trials and means of regret over the seeds."""
    found: dict[str, Any] = {
        f"trials_to_{percent}pct": float(np.median([r.trials_to(percent / 100) for r in races]))
        for percent in (5, 2)
    }
    for trials in AFTER:
        at = [race.regret[min(trials, len(race.regret)) - 1] for race in races]
        found[f"regret_at_{trials}"] = float(np.mean(at))
    found["oom_trials"] = float(np.median([race.ran_out for race in races]))
    return found


def run(
    surfaces: Sequence[Surface],
    rivals: Mapping[str, Callable[[Surface, int], AbstractRival]],
    seeds: int,
) -> dict[str, Any]:
    """Figures by surface and rival, and over all surfaces: medians of medians, means of regret."""
    by_surface = {
        surface.name: {
            "candidates": len(surface),
            "samplers": {
                name: figures([race(surface, made(surface, seed)) for seed in range(seeds)])
                for name, made in rivals.items()
            },
        }
        for surface in surfaces
    }
    overall = {name: _over_all(by_surface, name) for name in rivals}
    return {"seeds": seeds, "surfaces": by_surface, "overall": overall}


def _over_all(by_surface: Mapping[str, Any], name: str) -> dict[str, float]:
    told = [surface["samplers"][name] for surface in by_surface.values()]
    return {
        key: float((np.mean if key.startswith("regret") else np.median)([one[key] for one in told]))
        for key in (told[0] if told else ())
    }
