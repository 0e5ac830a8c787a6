"""The rule that ends a trial, on many series at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.coverage.noise import Numbers
from workers.measure.interval import is_precise, mean_bounds
from workers.measure.steady import warmup_lengths

INTERVAL = 0.02  # objective.interval by default
MIN_WINDOWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Simulated trials, one element each: windows run, and the reported step time with bounds."""

    windows: NDArray[np.intp]
    value: Numbers
    low: Numbers
    high: Numbers


def simulate(series: Numbers) -> Trials:
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
            ends = is_precise(steady, steps, INTERVAL) | (length == longest)
            ended[at] = ends
            reported[:, running[at[ends]]] = mean_bounds(steady[ends], steps[ends])
        windows[running[ended]] = length
        running = running[~ended]
        if not len(running):
            break
    return Trials(windows=windows, value=reported[0], low=reported[1], high=reported[2])
