"""All rules, in the order in which they are asked: those that forbid most come first.

A rule takes microseconds, so that an illegal plan never reaches a worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType, ModuleType

from search_spaces.plan import Plan
from search_spaces.rules import (
    batch,
    checkpointing,
    communication,
    computing,
    layout,
    offload,
    process,
    rest,
    sharding,
    tensor,
)
from search_spaces.rules.base import Rule, Surroundings
from search_spaces.trial import Refused


def _rules_of(module: ModuleType) -> tuple[Rule, ...]:
    rules: tuple[Rule, ...] = module.RULES
    return rules


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        rule.__name__: rule
        for module in (
            batch,
            layout,
            tensor,
            sharding,
            checkpointing,
            offload,
            computing,
            communication,
            process,
            rest,
        )
        for rule in _rules_of(module)
    }
)
_IN_ORDER = tuple(RULES.items())


def refusal(plan: Plan, around: Surroundings) -> Refused | None:
    """The first rule that forbids the plan, or None if it is legal."""
    for name, rule in _IN_ORDER:
        if reason := rule(plan, around):
            return Refused(rule=name, detail=reason)
    return None
