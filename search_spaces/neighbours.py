"""Plans that differ from one plan in a single knob.

Some knobs follow from others: accumulation from the global batch, what does not matter stands at
rest, data ranks are those that tensor and pipeline leave. A change counts as one knob's if all
else that differs follows from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs import KNOBS, Knob, always
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable

Flags = NDArray[np.bool_]

_SPLITS = ("accelerator", "tensor", "pipeline")  # what data ranks are left by


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A plan, by its row in a table, and the one knob in which it differs."""

    knob: str
    row: int


def neighbours(plan: Plan, table: PlanTable) -> tuple[Neighbour, ...]:
    """The plans of a table that differ from `plan` in one knob, in the order of the knobs.

    Of one change there may be several, which differ in what follows from it.
    """
    differing = _differing(plan, table)
    alone = np.sum(list(differing.values()), axis=0) == 1
    return tuple(
        Neighbour(knob=name, row=int(row))
        for name, where in differing.items()
        for row in np.flatnonzero(where & alone)
    )


def differing_knobs(plan: Plan, other: Plan) -> tuple[str, ...]:
    """The knobs in which two plans differ, without those that follow from another one of them."""
    differing = _differing(plan, PlanTable.of([other]))
    return tuple(name for name, where in differing.items() if where[0])


def _differing(plan: Plan, table: PlanTable) -> Mapping[str, Flags]:
    """For each knob the rows in which it differs from the plan, and not since another does."""
    raw = {knob.name: ~table.is_value(knob.name, getattr(plan, knob.name)) for knob in KNOBS}
    found = dict[str, Flags]()
    for knob in KNOBS:
        differs = raw[knob.name]
        if differs.any():
            differs = differs & _matters(knob, plan, table) & ~_follows(knob.name, plan, table, raw)
        found[knob.name] = differs
    return found


def _matters(knob: Knob, plan: Plan, table: PlanTable) -> Flags:
    """In which rows the knob changes anything; in none if it does not in the plan."""
    if knob.matters is always:
        return np.ones(len(table), dtype=bool)
    if not knob.matters({name: getattr(plan, name) for name in knob.looks_at}):
        return np.zeros(len(table), dtype=bool)
    group_of, rows = table.group(knob.looks_at)
    answers = [bool(knob.matters(_chosen(table, knob, int(row)))) for row in rows]
    matters: Flags = np.array(answers, dtype=bool)[group_of]
    return matters


def _chosen(table: PlanTable, knob: Knob, row: int) -> dict[str, Any]:
    return {name: table.values[name][table.codes[name][row]] for name in knob.looks_at}


def _follows(name: str, plan: Plan, table: PlanTable, raw: Mapping[str, Flags]) -> Flags:
    """The rows in which a knob that matters differs since another one does."""
    reasons = list(_reasons(name, plan, table, raw))
    follows: Flags = np.any(reasons, axis=0) if reasons else np.zeros(len(table), dtype=bool)
    return follows


def _reasons(name: str, plan: Plan, table: PlanTable, raw: Mapping[str, Flags]) -> Iterator[Flags]:
    if name == "data":
        yield from (raw[split] for split in _SPLITS)
    if plan.engine != "torch":
        return
    torch = table.is_value("engine", "torch")
    if name == "zero_stage":  # FSDP has nothing to split among one
        alone = table.is_value("data", 1)
        yield torch & raw["data"] & (np.ones_like(alone) if plan.data == 1 else alone)
    if name == "offload_parameters":  # with FSDP they go where the optimizer's states go
        yield torch & raw["offload_optimizer"]
