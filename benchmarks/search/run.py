"""All races of all competitors over all surfaces, on several processes."""

import multiprocessing
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.published.metrics import kendall_tau
from benchmarks.search.competitors.known import COMPETITORS, WRONG
from benchmarks.search.races import Race, figures, over_all, race
from benchmarks.search.surfaces import Surface, held_share

_AT_A_TIME = 5  # seeds that a process is handed
_SLOW = ("gp", "tpe", "plimsoll")  # are handed out first, so that processes end together
_held: list[Surface] = []  # of a process, so that they are sent once


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Some races of one competitor on one surface."""

    surface: int
    competitor: str
    seeds: range


def run(
    surfaces: Sequence[Surface], competitors: Sequence[str], seeds: int, processes: int = 1
) -> dict[str, Any]:
    """Races the competitors that are named.

    Returns:
        Figures by surface and competitor, over all surfaces, and what the surfaces are; they do not
        depend on the processes.
    """
    parts = [
        Part(surface=place, competitor=competitor, seeds=range(seeds)[first : first + _AT_A_TIME])
        for competitor in sorted(competitors, key=lambda name: not name.startswith(_SLOW))
        for place in sorted(range(len(surfaces)), key=lambda place: -len(surfaces[place]))
        for first in range(0, seeds, _AT_A_TIME)
    ]
    races = defaultdict[tuple[str, str], list[Race]](list)
    for part, found in zip(parts, _raced_apart(parts, surfaces, processes), strict=True):
        races[surfaces[part.surface].name, part.competitor] += found
    by_surface = {
        surface.name: {name: figures(races[surface.name, name]) for name in competitors}
        for surface in surfaces
    }
    return {
        "surfaces": by_surface,
        "overall": {
            competitor: over_all([one[competitor] for one in by_surface.values()])
            for competitor in competitors
        },
        "facts": {surface.name: _facts(surface) for surface in surfaces},
        "seeds": seeds,
    }


def _raced_apart(
    parts: Sequence[Part], surfaces: Sequence[Surface], processes: int
) -> Iterator[list[Race]]:
    """The races of each part."""
    if processes < 2:
        _hold(surfaces)
        yield from map(_raced, parts)
        return
    # a process that was forked from one that traced a model could not run torch's autograd
    fresh = multiprocessing.get_context("spawn")
    with fresh.Pool(processes, _hold, (surfaces,)) as pool:
        yield from pool.imap(_raced, parts)


def _hold(surfaces: Iterable[Surface]) -> None:
    _held[:] = surfaces


def _raced(part: Part) -> list[Race]:
    surface, make = _held[part.surface], {**COMPETITORS, **WRONG}[part.competitor]
    return [race(surface, make(surface, seed), seed) for seed in part.seeds]


def _forecast_facts(surface: Surface) -> dict[str, float | None]:
    """Measures how well the forecast ranks speed, and its median errors of speed and peak."""
    ran = ~np.isnan(surface.rate)
    tau = memory = speed = None
    if surface.log_rate is not None and np.ptp(surface.log_rate[ran]) > 0:
        told = np.exp(surface.log_rate[ran])
        tau = kendall_tau(told, surface.rate[ran], noise=surface.noise)
        speed = float(np.median(np.abs(told / surface.rate[ran] - 1)))
    held = np.array([held_share(trials) for trials in surface.trials])
    known = ran & np.isfinite(held)
    if surface.log_share is not None and known.any():
        memory = float(np.median(np.abs(np.expm1(surface.log_share - held)[known])))
    return {
        "forecast_tau": tau,
        "forecast_speed_error": speed,
        "forecast_memory_error": memory,
    }


def _facts(surface: Surface) -> dict[str, Any]:
    repeats = [len(trials) for trials in surface.trials]
    return {
        "candidates": len(surface),
        "infeasible": int(np.isnan(surface.rate).sum()),
        "within_2pct": int((surface.rate >= 0.98 * surface.best).sum()),
        "knobs": list(surface.distributions),
        "forecast_by": surface.told_by,
        **_forecast_facts(surface),
        "noise": surface.noise,
        "most_repeats": max(repeats),
    }
