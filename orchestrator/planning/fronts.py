"""Pareto fronts: what nothing else beats in both of two respects."""

from __future__ import annotations

import numpy as np

from search_spaces.forecast.executions import Counts, Numbers


def front(cost: Numbers, gain: Numbers) -> Counts:
    """Rows of which no other costs at most as much and gains more, cheapest first.

    Args:
        cost: What is to be small, such as peak bytes.
        gain: What is to be large, such as samples per second.
    """
    order = np.lexsort((-gain, cost))
    if not len(order):
        return order
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(gain[order])[:-1]])
    return order[gain[order] > best_before]


def thinned(rows: Counts, gain: Numbers, *, step: float, most: int) -> Counts:
    """A front without those that gain hardly more than the one before: what a table can show.

    Args:
        rows: A front, cheapest first; its last one is kept.
        gain: As in `front`.
        step: Share by which the next one must gain more.
        most: How many at most; the dearest go first into what is left.
    """
    kept: list[int] = []
    for row in rows[::-1]:
        if not kept or gain[row] <= gain[kept[-1]] / (1 + step):
            kept.append(int(row))
    return np.array(kept[:most][::-1], dtype=np.int64)
