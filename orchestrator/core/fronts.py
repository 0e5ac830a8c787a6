"""The records that no other beats in all that counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.goal import Goal
from search_spaces.record import Record
from search_spaces.spec.objective_section import Metric

Flags = NDArray[np.bool_]

_CHUNK = 512  # records that are held against all others at once


def front(records: Iterable[Record], goal: Goal, metrics: Sequence[Metric]) -> list[Record]:
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
    reached: NDArray[np.float64] = np.array(told)
    kept: list[Record] = []
    for start in range(0, len(order), _CHUNK):
        some = reached[start : start + _CHUNK, None]
        no_worse: Flags = np.all(reached >= some, axis=2)
        better: Flags = np.any(reached > some, axis=2)
        standing = ~np.any(no_worse & better, axis=1)
        kept += [order[start + at] for at in np.flatnonzero(standing).tolist()]
    return kept


def _known(goal: Goal, record: Record, metric: Metric) -> float:
    reached = goal.value(record, metric)
    return -np.inf if reached is None else reached.value
