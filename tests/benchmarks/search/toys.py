"""Small tables and surfaces, written down by hand."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from benchmarks.search.competitors.base import AbstractCompetitor
from benchmarks.search.surfaces import Setup, Surface, Trial

LIMIT_GIB = 16.0


def write_csv(file: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """A table with the columns that its rows name, and no others."""
    told = [dict(row) for row in rows]
    names = list(dict.fromkeys(name for row in told for name in row))
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, names, restval="")
        writer.writeheader()
        writer.writerows(told)
    return file


def toy_surface(
    candidates: Sequence[Mapping[str, Any]],
    rates: Sequence[float | None],
    *,
    peaks_gib: Sequence[float] | None = None,
    setup: Setup | None = None,
    log_rate: Sequence[float] | None = None,
    log_share: Sequence[float] | None = None,
) -> Surface:
    """A surface of these candidates; None ran out of memory. A trial takes 10 seconds."""
    peaks = peaks_gib or [None] * len(rates)
    shares = [None if peak is None else float(np.log(peak / LIMIT_GIB)) for peak in peaks]
    trials = [
        (Trial(rate=rate, log_share=share, seconds=10.0),)
        for rate, share in zip(rates, shares, strict=True)
    ]
    return Surface(
        name="toy",
        candidates=tuple(candidates),
        distributions={name: _distribution(candidates, name) for name in candidates[0]},
        trials=tuple(trials),
        rate=np.array([np.nan if rate is None else rate for rate in rates]),
        log_rate=None if log_rate is None else np.array(log_rate, dtype=float),
        log_share=None if log_share is None else np.array(log_share, dtype=float),
        told_by="nobody",
        noise=0.01,
        setup=setup or Setup(parameters=None, limit_gib=LIMIT_GIB, gpus=None, precision="bf16"),
    )


def order_of(
    surface: Surface, incumbent: AbstractCompetitor, trials: int
) -> list[Mapping[str, Any]]:
    """The candidates that a competitor asks for first."""
    free, asked = np.ones(len(surface), dtype=bool), []
    for _ in range(trials):
        row = incumbent.next(free)
        assert free[row]
        free[row] = False
        incumbent.tell(row, surface.trials[row][0])
        asked.append(surface.candidates[row])
    return asked


def _distribution(candidates: Sequence[Mapping[str, Any]], name: str) -> BaseDistribution:
    values = [candidate[name] for candidate in candidates]
    if all(isinstance(value, int | float) for value in values):
        return FloatDistribution(min(values), max(values), log=min(values) > 0)
    return CategoricalDistribution(sorted(set(values)))
