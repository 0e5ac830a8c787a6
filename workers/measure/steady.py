"""Warm-up detection in series of step times.

Pure arithmetic on seconds: no clock, no device.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Counts = NDArray[np.intp]


def warmup_length(seconds: Sequence[float]) -> int:
    """Returns the number of warm-up observations at the start of one series."""
    return int(warmup_lengths(np.asarray([seconds], float))[0])


def warmup_lengths(seconds: Numbers) -> Counts:
    """Returns the number of warm-up observations at the start of each row.

    The marginal standard error rule: cut where the standard error of the mean of the rest is
    least, at most half of the series. This removes compilation, first allocations and cold
    caches.

    A cut also needs most of what it removes to lie on one side of everything that stays. Without
    this, a stall in the first half takes all observations before it along, though the run will
    stall again; and half of all short steady series lose some by chance.

    Args:
        seconds: One series a row.

    Source:
        K. P. White Jr., "An effective truncation heuristic for bias reduction in simulation
        output", Simulation 69(6), 1997 (MSER).
    """
    rows, length = seconds.shape
    cuts = max(min(length // 2, length - 2), 0) + 1
    backwards = (seconds - seconds[:, -1:])[:, ::-1]  # differences lose fewer digits in squares
    count = np.arange(length, 0, -1)
    total = backwards.cumsum(axis=1)[:, ::-1]
    squares = (backwards**2).cumsum(axis=1)[:, ::-1]
    variance = np.maximum(squares / count - (total / count) ** 2, 0)
    error = (variance / count)[:, :cuts]
    highest = np.maximum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]
    lowest = np.minimum.accumulate(seconds[:, ::-1], axis=1)[:, ::-1]
    cut: Counts = error.argmin(axis=1)
    open_rows = np.arange(rows)
    while len(open_rows := open_rows[cut[open_rows] > 0]):
        at = cut[open_rows, None]
        head = seconds[open_rows]
        removed = np.arange(length) < at
        above = (removed & (head > np.take_along_axis(highest[open_rows], at, 1))).sum(axis=1)
        below = (removed & (head < np.take_along_axis(lowest[open_rows], at, 1))).sum(axis=1)
        open_rows = open_rows[2 * np.maximum(above, below) <= cut[open_rows]]
        error[open_rows, cut[open_rows]] = np.inf
        cut[open_rows] = error[open_rows].argmin(axis=1)
    return cut
