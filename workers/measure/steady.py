"""Warm-up detection in a series of step times, and the confidence interval of its median.

Pure arithmetic on seconds: no clock, no device.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

from search_spaces.trial import Estimate

CONFIDENCE = 0.95


def warmup_length(seconds: Sequence[float]) -> int:
    """Returns the number of warm-up observations at the start.

    The marginal standard error rule: cut where the standard error of the mean of the rest is
    least, at most half of the series. This removes compilation, first allocations and cold
    caches, and nothing from a steady series.

    Source:
        K. P. White Jr., "An effective truncation heuristic for bias reduction in simulation
        output", Simulation 69(6), 1997 (MSER).
    """
    best_cut, least = 0, math.inf
    for cut in range(len(seconds) // 2 + 1):
        rest = seconds[cut:]
        if len(rest) < 2:
            break
        error = statistics.pvariance(rest) / len(rest)
        if error < least:
            best_cut, least = cut, error
    return best_cut


def median_estimate(seconds: Sequence[float]) -> Estimate:
    """Returns the median and its distribution-free 95 % confidence interval, in seconds.

    The interval lies between two order statistics, chosen by the binomial distribution. Below
    6 observations no pair reaches 95 %, and the interval spans all of them.

    Raises:
        ValueError: If there is no observation.

    Source:
        Conover, "Practical Nonparametric Statistics", 3rd edition, section 3.2.
    """
    if not seconds:
        raise ValueError("need at least one observation")
    ordered = sorted(seconds)
    skipped = _skipped(len(ordered))
    return Estimate(
        value=statistics.median(ordered), low=ordered[skipped], high=ordered[-1 - skipped]
    )


@functools.cache
def _skipped(count: int) -> int:
    """Number of observations to leave out at each end; the rest still covers the median."""
    tail = 0.0
    for skipped in range(count):
        tail += math.comb(count, skipped) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            return max(skipped - 1, 0)
    return 0
