"""Plans as Optuna's parameters, and back."""

from __future__ import annotations

from typing import Any

from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from search_spaces.knobs import KNOBS
from search_spaces.plan import CHOICES, Plan
from search_spaces.space import Space


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """A distribution for each knob that has more than one value in the space.

    Word-like knobs offer all words that a plan knows, not only those searched: Optuna refuses a
    study whose choices change, and a resumed sweep may search more.
    """
    domains = dict(space.domains)
    return {
        knob.name: _distribution(knob.name, domains[knob.name])
        for knob in KNOBS
        if len(domains[knob.name]) > 1
    }


def _distribution(name: str, values: tuple[Any, ...]) -> BaseDistribution:
    if name in CHOICES:
        return CategoricalDistribution(CHOICES[name])
    if all(isinstance(value, int) for value in values):
        return IntDistribution(min(values), max(values), log=True)  # counts: powers matter
    return FloatDistribution(min(values), max(values))


def parameters(plan: Plan, searched: dict[str, BaseDistribution]) -> dict[str, Any]:
    """The plan's values of the searched knobs."""
    return {name: getattr(plan, name) for name in searched}
