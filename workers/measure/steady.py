"""When a series of step times has become steady, and what its median is worth.

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
    """How many observations at the start are warm-up.

    The marginal standard error rule: cut where the standard error of the rest's mean is least,
    at most half of the series. Compilation, first allocations and cold caches stand out from
    what follows and are cut; a steady series keeps all of it.

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
    """The median and its distribution-free 95 % confidence interval, in seconds.

    The interval lies between two order statistics, chosen by the binomial distribution; below
    6 observations no such pair reaches 95 %, and it spans all of them.

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
    """How many observations may be left out at each end and still cover the median."""
    tail = 0.0
    for skipped in range(count):
        tail += math.comb(count, skipped) / 2**count
        if tail > (1 - CONFIDENCE) / 2:
            return max(skipped - 1, 0)
    return 0
