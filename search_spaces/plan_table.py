"""Many plans as columns, so that they are ruled and forecast at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs.registry import KNOBS, Knob, always
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import Plan

Codes = NDArray[np.int32]
Rows = NDArray[np.intp]
KNOB_NAMES = tuple(field.name for field in fields(Plan))
_MOST_KEYS = 2**20  # looked up in a table of that size; beyond, keys are counted through by sorting
Flags = NDArray[np.bool_]
_SPLITS = ("accelerator", "tensor", "pipeline")  # what data ranks are left by


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanTable:
    """Plans, column by column: `values[name][codes[name][row]]` is a knob of the plan in a row.

    Every knob of a `Plan` has a column, `accumulation` included; no value stands twice in
    `values[name]`. A knob with one value takes no memory. Tables are equal if their plans are.
    """

    values: Mapping[str, Values]
    codes: Mapping[str, Codes]

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Self:
        """The table of these plans, in their order."""
        held = tuple(plans)
        values: dict[str, Values] = {}
        codes: dict[str, Codes] = {}
        for name in KNOB_NAMES:
            column = [getattr(plan, name) for plan in held]
            known = {value: code for code, value in enumerate(dict.fromkeys(column))}
            values[name] = tuple(known)
            codes[name] = np.fromiter((known[value] for value in column), np.int32, len(held))
        return cls(values=values, codes=codes)

    def __len__(self) -> int:
        return len(self.codes[KNOB_NAMES[0]])

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(row) for row in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PlanTable):
            return NotImplemented
        return len(self) == len(other) and all(
            np.array_equal(self.codes[name], other._recoded(name, self.values[name]))
            for name in KNOB_NAMES
        )

    __hash__ = None  # type: ignore[assignment]  # columns are not hashable

    def plan(self, row: int) -> Plan:
        """The plan in a row."""
        return Plan(**{name: self.values[name][self.codes[name][row]] for name in KNOB_NAMES})

    def column(self, name: str) -> NDArray[Any]:
        """The values of a knob, row by row: numbers, booleans or words."""
        return np.asarray(self.values[name])[self.codes[name]]

    def is_value(self, name: str, value: Any) -> NDArray[np.bool_]:
        """In which rows a knob has this value."""
        return self.is_one_of(name, (value,))

    def is_one_of(self, name: str, values: Collection[Any]) -> NDArray[np.bool_]:
        """In which rows a knob has one of these values."""
        matching = np.array([known in values for known in self.values[name]], dtype=bool)
        return matching[self.codes[name]]

    def take(self, rows: NDArray[Any]) -> Self:
        """The table of these rows (indices, or a mask), in their order."""
        kept: Rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        codes = {
            name: constant_codes(len(kept)) if len(self.values[name]) == 1 else column[kept]
            for name, column in self.codes.items()
        }
        return type(self)(values=self.values, codes=codes)

    def rows_of(self, plan: Plan) -> Rows:
        """The rows that hold this plan; none if it is not in the table."""
        rows: Rows | None = None
        for name in KNOB_NAMES:
            value, values = getattr(plan, name), self.values[name]
            if value not in values:
                return np.zeros(0, dtype=np.intp)
            if len(values) > 1:
                code, column = values.index(value), self.codes[name]
                rows = (
                    np.flatnonzero(column == code) if rows is None else rows[column[rows] == code]
                )
        return np.arange(len(self)) if rows is None else rows

    def group(self, names: Iterable[str]) -> tuple[Rows, Rows]:
        """Rows by what they have in these knobs.

        Returns:
            For each row the number of its group, and for each group one of its rows.
        """
        return group([(self.codes[name], len(self.values[name])) for name in names], len(self))

    def _recoded(self, name: str, values: Values) -> Codes:
        """A column in the codes of another list of values; -1 for what that lacks."""
        known = {value: code for code, value in enumerate(values)}
        new = np.array([known.get(value, -1) for value in self.values[name]], dtype=np.int32)
        return new[self.codes[name]]


class Candidates(Sequence[Plan]):
    """The plans of a table, each made when it is asked for; equal to any sequence of the same."""

    __slots__ = ("table",)

    def __init__(self, table: PlanTable) -> None:
        """Shows a table as a sequence."""
        self.table = table

    def __len__(self) -> int:
        return len(self.table)

    def __iter__(self) -> Iterator[Plan]:
        return iter(self.table)

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and len(self.table.rows_of(plan)) > 0

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> Candidates: ...

    def __getitem__(self, index: int | slice) -> Plan | Candidates:
        rows = range(len(self.table))[index]
        if isinstance(rows, int):
            return self.table.plan(rows)
        return Candidates(self.table.take(np.asarray(rows, dtype=np.intp)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Candidates):
            return self.table == other.table
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(Plan.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]  # a table is not hashable

    def __repr__(self) -> str:
        return f"<{len(self):,} plans>"


def candidates_of(plans: Sequence[Plan]) -> Candidates:
    """Plans with their table, which is made if they have none."""
    return plans if isinstance(plans, Candidates) else Candidates(PlanTable.of(plans))


def constant_codes(rows: int) -> Codes:
    """The codes of a knob with one value: one zero, seen from each row."""
    return np.broadcast_to(np.zeros((), dtype=np.int32), (rows,))


def group(columns: Iterable[tuple[Codes, int]], rows: int) -> tuple[Rows, Rows]:
    """Rows that have the same codes in all columns.

    Args:
        columns: Codes, each column with the number of values that it may have.
        rows: Length of each column.

    Returns:
        For each row the number of its group, and for each group one of its rows.
    """
    key, keys = np.zeros(rows, dtype=np.intp), 1
    for codes, count in columns:
        if count == 1:
            continue
        if keys * count > _MOST_KEYS:
            key, some_row = _numbered(key, keys)
            keys = len(some_row)
        key, keys = key * count + codes, keys * count
    return _numbered(key, keys)


def _numbered(key: Rows, keys: int) -> tuple[Rows, Rows]:
    """Keys as 0, 1, 2 and so on, and for each a row that has it."""
    if keys > max(_MOST_KEYS, 4 * len(key)):
        _, some_row, number = np.unique(key, return_index=True, return_inverse=True)
        return number, some_row
    row_of = np.full(keys, -1, dtype=np.intp)
    row_of[key] = np.arange(len(key))
    present = np.flatnonzero(row_of >= 0)
    if len(present) == keys:
        return key, row_of
    number_of = np.empty(keys, dtype=np.intp)
    number_of[present] = np.arange(len(present))
    return number_of[key], row_of[present]


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
    if knob.is_active is always:
        return np.ones(len(table), dtype=bool)
    if not knob.is_active({name: getattr(plan, name) for name in knob.depends_on}):
        return np.zeros(len(table), dtype=bool)
    group_of, rows = table.group(knob.depends_on)
    answers = [bool(knob.is_active(_chosen(table, knob, int(row)))) for row in rows]
    is_active: Flags = np.array(answers, dtype=bool)[group_of]
    return is_active


def _chosen(table: PlanTable, knob: Knob, row: int) -> dict[str, Any]:
    return {name: table.values[name][table.codes[name][row]] for name in knob.depends_on}


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
