"""Rules asked of a whole table: once for each case that a rule can tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import getattr_static
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import Rule, Surroundings
from search_spaces.rules.front import RULES
from search_spaces.rules.rest import RULES as RESTS_RULES
from search_spaces.trial import Refused

# A tree of knobs gives each its rest where it does not matter, and this rule reads all of them.
_OF_A_TREE = {name: rule for name, rule in RULES.items() if rule not in RESTS_RULES}
_KNOBS = frozenset(KNOB_NAMES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """What the rules say of a table.

    `legal` are its rows without objection; the others count for the first rule that forbids
    them: `ruled_out` by name, with what it said of the first such row in `examples`.
    """

    legal: NDArray[np.bool_]
    ruled_out: dict[str, int]
    examples: dict[str, Refused]


def rule_out(table: PlanTable, around: Surroundings) -> Ruling:
    """Asks all rules of all plans of a tree, as `refusal` does plan by plan.

    Args:
        table: Plans that have each knob at rest which changes nothing.
        around: What the rules look at beside the plans.
    """
    legal = np.ones(len(table), dtype=bool)
    counts: dict[str, int] = {}
    first_rows: dict[str, int] = {}
    for name, rule in _OF_A_TREE.items():
        refused = refused_rows(table, rule, around)
        if refused is None:
            continue
        refused &= legal
        if count := int(np.count_nonzero(refused)):
            counts[name], first_rows[name] = count, int(refused.argmax())
            legal &= ~refused
    # in the order of the rows, as plans are asked one after the other
    examples = {
        name: Refused(rule=name, detail=str(RULES[name](table.plan(row), around)))
        for name, row in sorted(first_rows.items(), key=lambda item: item[1])
    }
    return Ruling(legal=legal, ruled_out=counts, examples=examples)


def refused_rows(table: PlanTable, rule: Rule, around: Surroundings) -> NDArray[np.bool_] | None:
    """The rows of a table that a rule forbids, None if there are none.

    What a rule says follows from the knobs that it really reads: rows that have the same in all
    of these get the same answer. Which they are shows when it is asked, and it is asked again
    for more cases until it reads nothing new.
    """
    reads: set[str] = set()
    while True:
        group_of, rows = table.group(sorted(reads))
        views = [_Read(table, int(row)) for row in rows]
        answers = np.array([bool(rule(cast(Plan, view), around)) for view in views], dtype=bool)
        fresh = {name for view in views for name in view.read if len(table.values[name]) > 1}
        if fresh <= reads:
            return answers[group_of] if answers.any() else None
        reads |= fresh


class _Read:
    """A plan of a table that notes which knobs are read, through its properties too."""

    __slots__ = ("_row", "_table", "read")

    def __init__(self, table: PlanTable, row: int) -> None:
        self._table = table
        self._row = row
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in _KNOBS:
            self.read.add(name)
            return self._table.values[name][self._table.codes[name][self._row]]
        return getattr_static(Plan, name).__get__(self, Plan)
