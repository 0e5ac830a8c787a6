"""Speed of Plimsoll's search with many plans and records, and how busy it keeps a cluster.

    python -m benchmarks.search_scale [--out FILE]

Asks among 100,000 plans with 200 records, 5,000 and 10,000, and beside many trials under way, where
several plans are chosen from one fit; then a sweep on a simulated cluster: 64
trials at a time, each of which takes the seconds that its forecast says (a clock of its own passes
them), while asks and tells take the driver the time that they really take. Busy is the share of the
64 places' time in which a trial ran.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import write
from orchestrator.search.observations import Observation
from orchestrator.search.search import CandidatePool, Search

PLACES = 64
KNOBS, COEFFICIENTS = 14, 12
_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class World:
    """Synthetic candidates: their forecasts, and what is true of them."""

    options: CandidatePool
    log_rate: np.ndarray
    log_share: np.ndarray
    seconds: np.ndarray

    def observation(self, row: int) -> Observation:
        """Returns what a trial of a candidate shows."""
        if self.log_share[row] > 0:
            return Observation(row=row, log_share=float(self.log_share[row]), ran_out=True)
        rate, share = float(self.log_rate[row]), float(self.log_share[row])
        return Observation(row=row, log_rate=rate, log_share=share, fitted=True)


def world(candidates: int, seed: int = 0) -> World:
    """Throughput and memory that follow the knobs, forecasts that are off by a tenth."""
    rng = np.random.default_rng(seed)
    places = rng.random((candidates, KNOBS))
    rate = 0.3 * places @ rng.normal(size=KNOBS)
    share = 0.2 * places @ rng.normal(size=KNOBS) - 0.3
    options = CandidatePool(
        features=places,
        log_rate=rate + rng.normal(0, 0.1, candidates),
        log_share=share + rng.normal(0, 0.05, candidates),
        rate_parts=0.2 * rng.random((candidates, COEFFICIENTS)),
        share_parts=0.05 * rng.random((candidates, COEFFICIENTS)),
    )
    seconds = 10 + 20 * rng.random(candidates)
    return World(options=options, log_rate=rate, log_share=share, seconds=seconds)


def ask_seconds(world: World, records: int, asks: int = 5) -> list[float]:
    """Seconds of asks with so many records, each with one more than the last."""
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(world.options))[: records + asks].tolist()
    observations = [world.observation(row) for row in rows]
    free = np.ones(len(world.options), dtype=bool)
    free[rows] = False
    search, taken = Search(world.options), []
    search.next(observations[:records], free)  # what is made once
    for more in range(1, asks + 1):
        began = time.perf_counter()
        search.next(observations[: records + more], free)
        taken.append(time.perf_counter() - began)
    return taken


def under_way_seconds(world: World, under_way: int, at_once: int) -> float:
    """Seconds of an ask with 400 records beside trials under way, several chosen from one fit."""
    rows = np.random.default_rng(2).permutation(len(world.options)).tolist()
    observations, pending = (
        [world.observation(row) for row in rows[:400]],
        rows[400 : 400 + under_way],
    )
    free = np.ones(len(world.options), dtype=bool)
    free[rows[: 400 + under_way]] = False
    search = Search(world.options)
    search.next(observations, free)  # what is made once
    began = time.perf_counter()
    found = search.several(at_once, observations, free, pending)
    return (time.perf_counter() - began) / len(found)


def busy_share(world: World, trials: int) -> float:
    """The share of the places' time in which a trial ran, until the last trial was handed out."""
    search, observations = Search(world.options), list[Observation]()
    free = np.ones(len(world.options), dtype=bool)
    now, running = 0.0, list[tuple[float, int]]()
    idle_since: list[float] = [0.0] * PLACES
    ran = waited = 0.0
    for _ in range(trials):
        if not idle_since:
            ended, row = heapq.heappop(running)
            now = max(now, ended)
            observations.append(world.observation(row))
            idle_since.append(ended)
        began = time.perf_counter()
        row = search.next(observations, free, [row for _, row in running]).row
        now += time.perf_counter() - began  # meanwhile nothing else is handed out
        free[row] = False
        waited += now - idle_since.pop()
        ran += world.seconds[row]
        heapq.heappush(running, (now + world.seconds[row], row))
    return ran / (ran + waited)


def figures() -> Iterator[tuple[str, Any]]:
    """All that is told, as it is measured."""
    large = world(100_000)
    for records in (200, 5_000, 10_000):
        yield f"ask_ms_{records}_records", _milliseconds(ask_seconds(large, records))
    for under_way in (0, 250, 1000):
        # as many as `plimsoll_proposer` takes from a fit
        alone, shared = (
            round(1000 * under_way_seconds(large, under_way, count), 1)
            for count in (1, 1 + under_way // 50)
        )
        yield f"ask_ms_beside_{under_way}_under_way", {"alone": alone, "from_one_fit": shared}
    yield f"busy_share_of_{PLACES}", round(busy_share(large, 640), 3)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    yield "peak_gib", round(peak / _GIB, 2)


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    return {
        "median": round(1000 * float(np.median(seconds)), 1),
        "most": round(1000 * max(seconds), 1),
    }


def main() -> None:
    """Measures and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    found = {}
    for name, value in figures():
        found[name] = value
        print(name, value, flush=True)
    write(found, given.out)


if __name__ == "__main__":
    main()
