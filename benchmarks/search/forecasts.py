"""Forecasts of a surface's candidates, made without their measurements."""

import sys
from collections.abc import Sequence
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forecasts:
    """Logarithms of throughput and of the peak over the limit, of shape (candidates,).

    The mean of the others stands where one candidate has none; None if none has. The parts, of
    shape (candidates, coefficients), say how far a standard deviation of each coefficient moves
    them. `told_by` says from what they were made: the specification of a recording, its rows, or
    nothing.
    """

    log_rate: Numbers | None = None
    log_share: Numbers | None = None
    told_by: str = "nothing"
    rate_parts: Parts = None
    share_parts: Parts = None


def forecasts_of(grid: Grid, entries: Sequence[Entry], without: ForecasterWithout) -> Forecasts:
    """Forecasts of candidates by the plans of the specification beside the table, or by its rows.

    Args:
        grid: The surface.
        entries: A row of each candidate.
        without: The forecaster that knows nothing of a source.
    """
    spec = grid.file.with_suffix(".yaml")
    rows = [entry.row for entry in entries]
    try:
        if spec.is_file():
            from benchmarks.search.recorded import expected_plans  # imports torch

            told = expected_plans(spec, rows)
            return Forecasts(
                log_rate=_filled(told.log_rate),
                log_share=_filled(told.log_share),
                told_by="specification",
                rate_parts=np.nan_to_num(told.rate_parts),
                share_parts=np.nan_to_num(told.share_parts),
            )
        return _by_rows(grid, entries, without)
    except (UserError, UnusableRowError) as error:
        print(f"{grid.name} has no forecast: {error}", file=sys.stderr)
        return Forecasts()


def _by_rows(grid: Grid, entries: Sequence[Entry], without: ForecasterWithout) -> Forecasts:
    runs = [_run(entry, grid.file.stem) for entry in entries]
    known = [run for run in runs if run is not None]
    if not known:
        return Forecasts()
    told = without(grid.file.stem).forecast(known)
    at = [place for place, run in enumerate(runs) if run is not None]
    rate = spread(np.log(told.samples_per_second), at, len(runs))
    share = spread(np.log(told.peak_share), at, len(runs))
    if not np.isfinite(rate).any():
        return Forecasts(log_share=_filled(share))
    return Forecasts(
        log_rate=_filled(rate),
        log_share=_filled(share),
        told_by="rows",
        rate_parts=_parts(told.rate_parts, at, len(runs)),
        share_parts=_parts(told.share_parts, at, len(runs)),
    )


def _run(entry: Entry, source: str) -> Run | None:
    try:
        return run_of(entry.row, source=source, line=entry.line)
    except UnusableRowError:
        return None


def _parts(parts: Parts, at: Sequence[int], count: int) -> Parts:
    return None if parts is None else spread(parts, at, count, empty=0.0)


def spread(values: Numbers, at: Sequence[int], count: int, *, empty: float = np.nan) -> Numbers:
    """Values where they belong among all candidates, nan or another number elsewhere."""
    all_values = np.full((count, *values.shape[1:]), empty)
    all_values[at] = values
    return all_values


def _filled(values: Numbers) -> Numbers | None:
    finite = np.isfinite(values)
    if not finite.any():
        return None
    return np.where(finite, values, values[finite].mean())
