"""The rule that ends a trial, and the one before it, on many series at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.measure.interval import is_precise, mean_bounds
from workers.measure.steady import warmup_lengths

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]
Counts = NDArray[np.intp]
Bounds = tuple[Numbers, Numbers, Numbers]

INTERVAL = 0.02  # objective.interval by default


class Rule(Protocol):
    """A rule of when a trial ends and what it reports. Arguments hold one series a row."""

    min_windows: int

    def warmup(self, seconds: Numbers) -> Counts:
        """Windows to cut from the start."""

    def bounds(self, steady: Numbers) -> Bounds:
        """The reported step time and the bounds of its interval."""

    def ends(self, steady: Numbers) -> Flags:
        """True where measuring ends after these windows."""


class MeanRule:
    """Today's rule: at least 12 windows, halves that agree, an interval of the mean."""

    min_windows = 12

    def warmup(self, seconds: Numbers) -> Counts:
        """Windows to cut from the start."""
        return warmup_lengths(seconds)

    def bounds(self, steady: Numbers) -> Bounds:
        """The mean and its bounds."""
        return mean_bounds(steady, np.ones_like(steady))

    def ends(self, steady: Numbers) -> Flags:
        """True where measuring ends after these windows."""
        return is_precise(steady, np.ones_like(steady), INTERVAL)


class MedianRule:
    """The earlier rule: at least 6 windows, MSER alone, order statistics around the median."""

    min_windows = 6

    def warmup(self, seconds: Numbers) -> Counts:
        """The cut with the least standard error, at most half."""
        length = seconds.shape[1]
        cuts = min(length // 2, length - 2) + 1
        errors = [seconds[:, cut:].var(axis=1) / (length - cut) for cut in range(cuts)]
        cut: Counts = np.argmin(errors, axis=0)
        return cut

    def bounds(self, steady: Numbers) -> Bounds:
        """The median, and order statistics of a 95 % interval.

        Source:
            Conover, "Practical Nonparametric Statistics", 3rd edition, section 3.2.
        """
        ordered = np.sort(steady, axis=1)
        skipped = _skipped(steady.shape[1])
        return np.median(steady, axis=1), ordered[:, skipped], ordered[:, -1 - skipped]

    def ends(self, steady: Numbers) -> Flags:
        """True where half of the interval is narrow enough."""
        median, low, high = self.bounds(steady)
        narrow: Flags = (high - low) / 2 <= INTERVAL * median
        return narrow


@cache
def _skipped(count: int) -> int:
    """Observations to leave out at each end; the rest still covers the median."""
    tail = 0.0
    for skipped in range(count):
        tail += math.comb(count, skipped) / 2**count
        if tail > 0.025:
            return max(skipped - 1, 0)
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Simulated trials, one element each: windows run, and the reported step time with bounds."""

    windows: Counts
    value: Numbers
    low: Numbers
    high: Numbers


def simulate(rule: Rule, series: Numbers) -> Trials:
    """Runs one trial on each row, a window a step, until the rule or the last step ends it."""
    rows, longest = series.shape
    windows = np.full(rows, longest)
    reported = np.zeros((3, rows))
    running = np.arange(rows)
    for length in range(rule.min_windows, longest + 1):
        warmup = rule.warmup(series[running, :length])
        ended = np.zeros(len(running), bool)
        for cut in np.unique(warmup):
            if length - cut < rule.min_windows and length < longest:
                continue
            at = np.flatnonzero(warmup == cut)
            steady = series[running[at], cut:length]
            ends = rule.ends(steady) | (length == longest)
            ended[at] = ends
            reported[:, running[at[ends]]] = rule.bounds(steady[ends])
        windows[running[ended]] = length
        running = running[~ended]
        if not len(running):
            break
    return Trials(windows=windows, value=reported[0], low=reported[1], high=reported[2])
