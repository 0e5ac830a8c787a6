"""Encoding of candidates as points, and of knobs as Optuna distributions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.plan import CHOICES, COUNTS, Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import Space

Points = NDArray[np.float64]
Distributions = dict[str, BaseDistribution]


def table_features(table: PlanTable, by: Mapping[str, BaseDistribution]) -> Points:
    """Encodes the plans of a table as points, of shape (plans, features), by these knobs.

    Numbers are scaled to 0 to 1, on a logarithmic scale if their distribution is logarithmic.
    Two different choices of a categorical parameter always have distance 1.
    """
    columns = [
        column[table.codes[name]]
        for name, distribution in by.items()
        for column in feature_columns(distribution, table.values[name])
    ]
    return np.stack(columns, axis=1) if columns else np.zeros((len(table), 1))


def position(distribution: BaseDistribution, value: Any) -> float:
    """Returns a choice's index, or a number's position between its bounds, 0 to 1."""
    if isinstance(distribution, CategoricalDistribution):
        return float(distribution.choices.index(value))
    low, high = float(distribution.low), float(distribution.high)  # type: ignore[attr-defined]
    if high == low:
        return 0.0
    if getattr(distribution, "log", False):
        low, high, value = np.log([low, high, value])
    return (float(value) - low) / (high - low)


def feature_columns(distribution: BaseDistribution, values: Sequence[Any]) -> Iterator[Points]:
    """Yields the features of values of one parameter: see `table_features`."""
    if isinstance(distribution, CategoricalDistribution):
        for choice in distribution.choices:
            yield np.array([value == choice for value in values]) / 2**0.5
        return
    yield np.array([position(distribution, value) for value in values])


def distributions(space: Space) -> Distributions:
    """Returns a distribution for each knob that has more than one value in the space."""
    return {name: distribution(name, values) for name, values in space.domains if len(values) > 1}


def storable(searched: Distributions) -> Distributions:
    """Returns the distributions under which a study on disk stores the knobs.

    A categorical knob gets every choice that a plan can have, not only those searched: Optuna
    refuses a study whose choices change, and a resumed sweep may search more of them.
    """
    return {
        name: CategoricalDistribution(CHOICES[name]) if name in CHOICES else distribution
        for name, distribution in searched.items()
    }


def parameters(plan: Plan, searched: Distributions) -> dict[str, Any] | None:
    """Returns the plan's values of the searched knobs, None if a distribution lacks one."""
    values = {name: getattr(plan, name) for name in searched}
    inside = all(_contains(searched[name], value) for name, value in values.items())
    return values if inside else None


def distribution(name: str, values: tuple[Any, ...]) -> BaseDistribution:
    """Returns the Optuna distribution of a knob with these values."""
    if name in CHOICES:
        return CategoricalDistribution(values)
    if name in COUNTS:
        # Logarithmic unless the count may be 0. The knob decides, not the values at hand: Optuna
        # refuses a study whose scale changes
        return IntDistribution(min(values), max(values), log=COUNTS[name] > 0)
    return FloatDistribution(min(values), max(values))


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    match distribution:
        case CategoricalDistribution(choices=choices):
            return value in choices
        case IntDistribution(low=low, high=high) | FloatDistribution(low=low, high=high):
            return bool(low <= value <= high)
        case _:
            raise TypeError(f"no knob has a {type(distribution).__name__}")
