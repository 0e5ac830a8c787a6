"""Pareto fronts: of records, and of rows of forecasts."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.objective import Objective
from orchestrator.core.records import Record
from search_spaces.specification.sections import Metric

Numbers = NDArray[np.float64]
Counts = NDArray[np.int64]
_CHUNK = 512  # records that are compared with all others at once


def pareto_front(
    records: Iterable[Record], objective: Objective, metrics: Sequence[Metric]
) -> list[Record]:
    """Returns the Pareto-optimal of the feasible records.

    Args:
        records: The records to compare.
        objective: Decides what is feasible, and prices ranks.
        metrics: The metrics to compare; an unknown value ranks last. The first metric orders the
            front, best first.
    """
    order = sorted(
        (record for record in records if objective.feasible(record)),
        key=lambda record: -_value(objective, record, metrics[0]),
    )
    rows = [[_value(objective, record, name) for name in metrics] for record in order]
    values: Numbers = np.array(rows)
    front: list[Record] = []
    for start in range(0, len(order), _CHUNK):
        chunk = values[start : start + _CHUNK, None]
        no_worse: NDArray[np.bool_] = np.all(values >= chunk, axis=2)
        better: NDArray[np.bool_] = np.any(values > chunk, axis=2)
        optimal = ~np.any(no_worse & better, axis=1)
        front += [order[start + row] for row in np.flatnonzero(optimal).tolist()]
    return front


def _value(objective: Objective, record: Record, metric: Metric) -> float:
    estimate = objective.value(record, metric)
    return -np.inf if estimate is None else estimate.value


def front_rows(cost: Numbers, gain: Numbers) -> Counts:
    """Returns the rows of the Pareto front of two columns, cheapest first.

    Args:
        cost: The column to minimize, such as peak bytes.
        gain: The column to maximize, such as samples per second.
    """
    order = np.lexsort((-gain, cost))
    if not len(order):
        return order
    best_before = np.concatenate([[-np.inf], np.maximum.accumulate(gain[order])[:-1]])
    return order[gain[order] > best_before]
