"""Candidates as points: where they lie by their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution

from search_spaces.plan_table import PlanTable

Points = NDArray[np.float64]


def features(candidates: Sequence[Mapping[str, Any]], by: Mapping[str, BaseDistribution]) -> Points:
    """Points of shape (candidates, features).

    A number lies between 0 and 1, as its distribution does, logarithmic ones by their logarithm.
    Two different choices of a category are 1 apart, whichever they are.
    """
    columns = [
        column
        for name, distribution in by.items()
        for column in _columns(distribution, [candidate[name] for candidate in candidates])
    ]
    if not columns:
        return np.zeros((len(candidates), 1))
    return np.stack(columns, axis=1)


def table_features(table: PlanTable, by: Mapping[str, BaseDistribution]) -> Points:
    """The same of plans, by their knobs."""
    columns = [
        column[table.codes[name]]
        for name, distribution in by.items()
        for column in _columns(distribution, table.values[name])
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 1))


def place(distribution: BaseDistribution, value: Any) -> float:
    """Where a value lies: a choice's number, or 0 to 1 between a number's bounds."""
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.choices.index(value))
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if high == low:
        return 0.0
    if getattr(distribution, "log", False):
        low, high, value = np.log([low, high, value])
    return (float(value) - low) / (high - low)


def _columns(distribution: BaseDistribution, values: Sequence[Any]) -> Iterator[Points]:
    if isinstance(distribution, CategoricalDistribution):
        for choice in distribution.choices:
            yield np.array([value == choice for value in values]) / 2**0.5
        return
    yield np.array([place(distribution, value) for value in values])
