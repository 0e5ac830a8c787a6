"""Forecasts of a surface's candidates, made without their measurements."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.cells import UnusableRowError
from benchmarks.published.forecaster import ForecasterWithout
from benchmarks.published.reader import run_of
from benchmarks.published.values import Run
from benchmarks.search.tables import Entry, Grid
from search_spaces.errors import UserError

Numbers = NDArray[np.float64]
Parts = Numbers | None
Told = tuple[Numbers | None, Numbers | None, Parts, Parts]  # throughput, memory, their parts


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasts:
    """Logarithms of throughput and of the peak over the limit, of shape (candidates,).

    The mean of the others stands where one candidate has none; None if none has. The parts, of
    shape (candidates, coefficients), say how far a standard deviation of each coefficient moves
    them. `told_by` says from what they were made: the specification of a recording, its rows, or
    nothing.
    """

    log_rate: Numbers | None
    log_share: Numbers | None
    told_by: str
    rate_parts: Parts = None
    share_parts: Parts = None


def forecasts_of(grid: Grid, entries: Sequence[Entry], without: ForecasterWithout) -> Forecasts:
    """Forecasts of candidates by the plans of the specification beside the table, or by its rows.

    Args:
        grid: The surface.
        entries: A row of each candidate.
        without: The forecaster that knows nothing of a source.
    """
    ways: tuple[tuple[str, Callable[[], Told]], ...] = (
        ("specification", lambda: _by_plans(grid, entries)),
        ("rows", lambda: _by_rows(grid, entries, without)),
    )
    for told_by, forecast in ways:
        try:
            rate, share, *parts = forecast()
        except (UserError, UnusableRowError) as error:
            print(f"{grid.name} has no forecast by its {told_by}: {error}", file=sys.stderr)
            continue
        if rate is not None:
            return Forecasts(
                log_rate=rate,
                log_share=share,
                told_by=told_by,
                rate_parts=parts[0],
                share_parts=parts[1],
            )
    return Forecasts(log_rate=None, log_share=None, told_by="nothing")


def _by_plans(grid: Grid, entries: Sequence[Entry]) -> Told:
    from benchmarks.search.recorded import expected_plans  # imports torch

    for suffix in (".yaml", ".yml"):
        spec = grid.file.with_suffix(suffix)
        if spec.is_file():
            told = expected_plans(spec, [entry.row for entry in entries])
            rate, share = _filled(told.log_rate), _filled(told.log_share)
            return rate, share, np.nan_to_num(told.rate_parts), np.nan_to_num(told.share_parts)
    return None, None, None, None


def _by_rows(grid: Grid, entries: Sequence[Entry], without: ForecasterWithout) -> Told:
    runs = [_run(entry, grid.file.stem) for entry in entries]
    known = [run for run in runs if run is not None]
    rate, share = (np.full(len(runs), np.nan) for _ in range(2))
    parts: list[Parts] = [None, None]
    if known:
        told = without(grid.file.stem).forecast(known)
        at = [place for place, run in enumerate(runs) if run is not None]
        rate[at], share[at] = np.log(told.samples_per_second), np.log(told.peak_share)
        parts = [_placed(at, part, len(runs)) for part in (told.rate_parts, told.share_parts)]
    return _filled(rate), _filled(share), parts[0], parts[1]


def _run(entry: Entry, source: str) -> Run | None:
    try:
        return run_of(entry.row, source=source, line=entry.line)
    except UnusableRowError:
        return None


def _placed(at: Sequence[int], parts: Parts, count: int) -> Parts:
    if parts is None:
        return None
    placed = np.zeros((count, parts.shape[1]))
    placed[at] = parts
    return placed


def _filled(values: Numbers) -> Numbers | None:
    finite = np.isfinite(values)
    if not finite.any():
        return None
    return np.where(finite, values, values[finite].mean())
