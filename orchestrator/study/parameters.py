"""Plans as Optuna's parameters."""

from __future__ import annotations

from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.plan import CHOICES, COUNTS, NAMES, Plan
from search_spaces.space import Space

Distributions = dict[str, BaseDistribution]


def distributions(space: Space) -> Distributions:
    """A distribution for each knob that has more than one value in the space."""
    return {name: distribution(name, values) for name, values in space.domains if len(values) > 1}


def for_keeping(searched: Distributions) -> Distributions:
    """The distributions as a study on disk may hold them.

    Word-like knobs offer all words that a plan knows, not only those searched: Optuna refuses a
    study whose choices change, and a resumed sweep may search more. Kinds of nodes are part of the
    job, so that those searched are all that there will be.
    """
    return {
        name: CategoricalDistribution(CHOICES[name]) if name in CHOICES else distribution
        for name, distribution in searched.items()
    }


def parameters(plan: Plan, searched: Distributions) -> dict[str, Any] | None:
    """The plan's values of the searched knobs, None if one lies outside its distribution."""
    values = {name: getattr(plan, name) for name in searched}
    inside = all(_contains(searched[name], value) for name, value in values.items())
    return values if inside else None


def distribution(name: str, values: tuple[Any, ...]) -> BaseDistribution:
    """What a knob may be, from the values that it has."""
    if name in CHOICES or name in NAMES:
        return CategoricalDistribution(values)
    if name in COUNTS:
        # powers matter, unless the count may be 0: by the knob and not by the values at hand, for
        # Optuna refuses a study whose scale changes
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
