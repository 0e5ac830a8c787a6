"""Registry of all rules, in the order in which they apply: those that forbid most come first.

Each function of the modules of rules with a rule's signature is one.

Rules take microseconds and run before anything else, so an illegal plan never reaches a worker.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getattr_static
from types import MappingProxyType
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs.knob import always
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import DEFAULTS, Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules import adapters, compute, device, layout, offload, sharding
from search_spaces.rules.base import Rule, RuleContext
from search_spaces.rules.trainer import trainer_rules
from search_spaces.trial import Refused

_MODULES = (layout, adapters, sharding, offload, compute, device)
_SIGNATURE = [Plan, RuleContext, str | None]  # annotations of a rule
# For plans that a user types: the search never produces an inactive knob off its default.
_CONDITIONAL = tuple(
    (knob.name, DEFAULTS[knob.name], knob.is_active, knob.depends_on)
    for knob in KNOBS
    if knob.is_active is not always
)


def knob_at_default(plan: Plan, _: RuleContext) -> str | None:
    """An inactive knob off its default would give the same plan another name."""
    for name, default, is_active, depends_on in _CONDITIONAL:
        value = getattr(plan, name)
        if value == default or is_active({other: getattr(plan, other) for other in depends_on}):
            continue
        others = ", ".join(f"{other} {getattr(plan, other)}" for other in depends_on)
        return f"{name} {value} changes nothing with {others}: it must be {default}"
    return None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "global_batch_is_kept": layout.global_batch_is_kept,  # alone it says what is wrong
        **{
            name: function
            for module in _MODULES
            for name, function in vars(module).items()
            if [*getattr(function, "__annotations__", {}).values()] == _SIGNATURE
        },
        "knob_at_default": knob_at_default,
    }
)
_IN_ORDER = tuple(RULES.items())


def refusal(plan: Plan, context: RuleContext) -> Refused | None:
    """Returns the objection of the first rule that forbids the plan; None if it is legal."""
    for name, rule in (*_IN_ORDER, *trainer_rules(context.spec.trainer).items()):
        if reason := rule(plan, context):
            return Refused(rule=name, detail=reason)
    return None


# The tree of knobs keeps inactive ones at their default, and this rule would read every knob.
_TREE_RULES = {name: rule for name, rule in RULES.items() if rule is not knob_at_default}
_KNOBS = frozenset(KNOB_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Result of applying the rules to a table.

    Attributes:
        legal: Mask of the rows without objection.
        ruled_out: Number of rows by the first rule that forbids them.
        examples: Objection of that rule to its first row.
    """

    legal: NDArray[np.bool_]
    ruled_out: dict[str, int]
    examples: dict[str, Refused]


def rule_out(table: PlanTable, context: RuleContext) -> Ruling:
    """Applies all rules to all plans of a tree, with the result of `refusal` plan by plan.

    Args:
        table: Plans with each inactive knob at its default.
        context: Inputs of the rules besides the plans.
    """
    legal = np.ones(len(table), dtype=bool)
    counts: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    rules = {**_TREE_RULES, **trainer_rules(context.spec.trainer)}
    for name, rule in rules.items():
        refused = refused_rows(table, rule, context)
        if refused is None:
            continue
        refused &= legal
        if count := int(np.count_nonzero(refused)):
            counts[name], first_rows[name] = count, int(refused.argmax())
            legal &= ~refused
    # in row order, as if plans were checked one after the other
    examples = {
        name: Refused(rule=name, detail=str(rules[name](table.plan(row), context)))
        for name, row in sorted(first_rows.items(), key=lambda item: item[1])
    }
    return Ruling(legal=legal, ruled_out=counts, examples=examples)


def refused_rows(table: PlanTable, rule: Rule, context: RuleContext) -> NDArray[np.bool_] | None:
    """Returns the mask of the rows that a rule forbids; None if it forbids none.

    A rule's answer depends only on the knobs that it reads: rows that agree in these get the same
    answer. The rule is called on one row of each group, and again on finer groups until it reads
    no new knob.
    """
    known_knobs: set[str] = set()
    while True:
        group_of, rows = table.group(sorted(known_knobs))
        plans = [_RecordingPlan(table, int(row)) for row in rows]
        answers = np.array([bool(rule(cast(Plan, plan), context)) for plan in plans], dtype=bool)
        knobs_read = {
            name for plan in plans for name in plan.knobs_read if len(table.values[name]) > 1
        }
        if knobs_read <= known_knobs:
            return answers[group_of] if answers.any() else None
        known_knobs |= knobs_read


class _RecordingPlan:
    """A plan of a table that records the knobs that are read, also by its properties."""

    __slots__ = ("_row", "_table", "knobs_read")

    def __init__(self, table: PlanTable, row: int) -> None:
        self._table = table
        self._row = row
        self.knobs_read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in _KNOBS:
            self.knobs_read.add(name)
            return self._table.values[name][self._table.codes[name][self._row]]
        return getattr_static(Plan, name).__get__(self, Plan)
