"""Ranking sets: runs that differ in what is tuned, and records drawn from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from benchmarks.published.values import Run

NOISE = 0.03
# Source: the README of the tables: repeats in these differ by a tenth and more.
NOISY = 0.10
_NOISY_SETS = frozenset((("bigscience", "S002"), ("bigscience", "S003")))
_NOISY_SOURCES = frozenset(("nanotron",))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingSet:
    """Runs that share model, devices and length; `rows` index the runs that were read."""

    name: str
    source: str
    noise: float
    rows: tuple[int, ...]


def ranking_sets(runs: tuple[Run, ...]) -> tuple[RankingSet, ...]:
    """The sets that the runs name, of two runs and more.

    Ids count within a file; one that several files use is told apart by the file's name.
    """
    members: dict[tuple[str, str], list[int]] = {}
    for row, run in enumerate(runs):
        for name in run.sets:
            members.setdefault((name, run.source), []).append(row)
    ids = [name for name, _ in members]
    return tuple(
        RankingSet(
            name=name if ids.count(name) == 1 else f"{source}/{name}",
            source=source,
            noise=noise_of(source, name),
            rows=tuple(rows),
        )
        for (name, source), rows in sorted(members.items())
        if len(rows) > 1
    )


def noise_of(source: str, name: str) -> float:
    """Returns by how much repeats of a set differ, as a share."""
    noisy = source in _NOISY_SOURCES or (source, name) in _NOISY_SETS
    return NOISY if noisy else NOISE


def distinct(runs: tuple[Run, ...], rows: Iterable[int]) -> tuple[tuple[int, ...], ...]:
    """Rows by configuration: repeats stand together, in order of their first."""
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(runs[row].configuration, []).append(row)
    return tuple(tuple(group) for group in groups.values())


def draws(rows: tuple[int, ...], k: int, *, times: int, seed: int) -> tuple[tuple[int, ...], ...]:
    """`times` choices of k rows, never of all of them.

    Each is a prefix of a random order of its own, so that the choice of 1 is part of that of 3.
    Nothing where fewer than k + 1 rows are there.
    """
    if len(rows) <= k:
        return ()
    orders = (np.random.default_rng((seed, time)).permutation(len(rows)) for time in range(times))
    return tuple(tuple(rows[place] for place in order[:k]) for order in orders)
