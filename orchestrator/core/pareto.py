"""Pareto fronts: of records, and of rows of forecasts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.objective import Objective
from search_spaces.spec.sections import Metric
from search_spaces.trial import Record

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
_CHUNK = 512  # records that are compared with all others at once


def pareto_front(
    records: Iterable[Record], goal: Objective, metrics: Sequence[Metric]
) -> list[Record]:
    """The feasible records that no other beats in one of the metrics and equals in the rest.

    Args:
        records: Those compared.
        goal: Says what is feasible, and what a rank costs.
        metrics: What is compared, as far as each is known; the first one orders the front.
    """
    order = sorted(
        (record for record in records if goal.feasible(record)),
        key=lambda record: -_known(goal, record, metrics[0]),
    )
    told = [[_known(goal, record, name) for name in metrics] for record in order]
    reached: Numbers = np.array(told)
    kept: list[Record] = []
    for start in range(0, len(order), _CHUNK):
        some = reached[start : start + _CHUNK, None]
        no_worse: NDArray[np.bool_] = np.all(reached >= some, axis=2)
        better: NDArray[np.bool_] = np.any(reached > some, axis=2)
        standing = ~np.any(no_worse & better, axis=1)
        kept += [order[start + at] for at in np.flatnonzero(standing).tolist()]
    return kept


def _known(goal: Objective, record: Record, metric: Metric) -> float:
    reached = goal.value(record, metric)
    return -np.inf if reached is None else reached.value


def front_rows(cost: Numbers, gain: Numbers) -> Counts:
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
        gain: As in `front_rows`.
        step: Share by which the next one must gain more.
        most: How many at most; the dearest go first into what is left.
    """
    kept: list[int] = []
    for row in rows[::-1]:
        if not kept or gain[row] <= gain[kept[-1]] / (1 + step):
            kept.append(int(row))
    return np.array(kept[:most][::-1], dtype=np.int64)
