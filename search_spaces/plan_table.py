"""Tables of plans: many plans as columns, so that rules and forecasts handle them at once."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self, overload

import numpy as np
from numpy.typing import NDArray

from search_spaces.knobs.knob import Knob, always
from search_spaces.knobs.registry import KNOBS
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import Plan

Codes = NDArray[np.int32]
Rows = NDArray[np.intp]
KNOB_NAMES = tuple(field.name for field in fields(Plan))
_MAX_KEYS = 2**20  # size of the lookup table of group keys; larger keys are renumbered first
Flags = NDArray[np.bool_]
_DATA_DEPENDS_ON = ("tensor", "pipeline")  # they determine the data ranks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class PlanTable(Sequence[Plan]):
    """Plans by column: `values[name][codes[name][row]]` is a knob of the plan in a row.

    Every field of a `Plan` has a column, including `accumulation`; `values[name]` holds distinct
    values. A knob with one value takes no memory. As a sequence, a table makes each plan on access,
    and equals any sequence of the same plans.
    """

    values: Mapping[str, Values]
    codes: Mapping[str, Codes]

    @classmethod
    def of(cls, plans: Iterable[Plan]) -> Self:
        """Returns the table of these plans, in their order; a table as it is."""
        if isinstance(plans, cls):
            return plans
        rows = tuple(plans)
        values: dict[str, Values] = {}
        codes: dict[str, Codes] = {}
        for name in KNOB_NAMES:
            column = [getattr(plan, name) for plan in rows]
            code_of = {value: code for code, value in enumerate(dict.fromkeys(column))}
            values[name] = tuple(code_of)
            codes[name] = np.fromiter((code_of[value] for value in column), np.int32, len(rows))
        return cls(values=values, codes=codes)

    def __len__(self) -> int:
        return len(next(iter(self.codes.values())))

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(row) for row in range(len(self)))

    def __contains__(self, plan: object) -> bool:
        return isinstance(plan, Plan) and len(self.rows_of(plan)) > 0

    @overload
    def __getitem__(self, index: int) -> Plan: ...

    @overload
    def __getitem__(self, index: slice) -> Self: ...

    def __getitem__(self, index: int | slice) -> Plan | Self:
        rows = range(len(self))[index]
        if isinstance(rows, int):
            return self.plan(rows)
        return self.take(np.asarray(rows, dtype=np.intp))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        if len(self) != len(other) or not isinstance(other, PlanTable):
            return len(self) == len(other) and all(map(Plan.__eq__, self, other))
        return all(
            np.array_equal(self.codes[name], other._recoded(name, self.values[name]))
            for name in KNOB_NAMES
        )

    __hash__ = None  # type: ignore[assignment]  # columns are not hashable

    def __repr__(self) -> str:
        return f"<{len(self):,} plans>"

    def plan(self, row: int) -> Plan:
        """Returns the plan in a row."""
        return Plan(**{name: self.values[name][self.codes[name][row]] for name in KNOB_NAMES})

    def column(self, name: str) -> NDArray[Any]:
        """Returns the values of a knob, row by row: numbers, booleans or text."""
        return np.asarray(self.values[name])[self.codes[name]]

    def is_value(self, name: str, value: Any) -> NDArray[np.bool_]:
        """Returns the mask of the rows in which a knob has this value."""
        matching = np.array([one == value for one in self.values[name]], dtype=bool)
        return matching[self.codes[name]]

    def take(self, rows: NDArray[Any]) -> Self:
        """Returns the table of these rows (indices or a mask), in their order."""
        indices: Rows = np.flatnonzero(rows) if rows.dtype == bool else rows
        codes = {
            name: constant_codes(len(indices)) if len(self.values[name]) == 1 else column[indices]
            for name, column in self.codes.items()
        }
        return type(self)(values=self.values, codes=codes)

    def with_knobs(self, knobs: Mapping[str, Any]) -> Self:
        """Returns the table with these knobs in every row."""
        values = {name: (value,) for name, value in knobs.items()}
        codes = dict.fromkeys(knobs, constant_codes(len(self)))
        return type(self)(values={**self.values, **values}, codes={**self.codes, **codes})

    def joined(self, other: Self) -> Self:
        """Returns the rows of both tables, those of the other one last."""
        values = {
            name: tuple(dict.fromkeys((*own, *other.values[name])))
            for name, own in self.values.items()
        }
        codes = {
            name: np.concatenate([each._recoded(name, domain) for each in (self, other)])
            if len(domain) > 1
            else constant_codes(len(self) + len(other))
            for name, domain in values.items()
        }
        return type(self)(values=values, codes=codes)

    def rows_of(self, plan: Plan) -> Rows:
        """Returns the indices of the rows with this plan; empty if it is not in the table."""
        rows: Rows = np.arange(len(self))
        for name in KNOB_NAMES:
            value, values = getattr(plan, name), self.values[name]
            if value not in values:
                return rows[:0]
            if len(values) > 1:
                rows = rows[self.codes[name][rows] == values.index(value)]
        return rows

    def group(self, names: Iterable[str]) -> tuple[Rows, Rows]:
        """Groups rows by their values of these knobs.

        Returns:
            The group number of each row, and one row of each group.
        """
        key, key_count = np.zeros(len(self), dtype=np.intp), 1
        for name in names:
            count = len(self.values[name])
            if count == 1:
                continue
            if key_count * count > _MAX_KEYS:
                key, some_row = _renumbered(key, key_count)
                key_count = len(some_row)
            key, key_count = key * count + self.codes[name], key_count * count
        return _renumbered(key, key_count)

    def cases(self, names: Iterable[str]) -> tuple[Rows, list[dict[str, Any]]]:
        """Returns the case number of each row, and the values of these knobs in each case."""
        columns = {name: (self.values[name], self.codes[name]) for name in names}
        group_of, rows = self.group(columns)
        return group_of, [
            {name: values[codes[row]] for name, (values, codes) in columns.items()} for row in rows
        ]

    def _recoded(self, name: str, values: Values) -> Codes:
        code_of = {value: code for code, value in enumerate(values)}
        recoded = np.array([code_of.get(value, -1) for value in self.values[name]], dtype=np.int32)
        return recoded[self.codes[name]]


def constant_codes(rows: int) -> Codes:
    """Returns the codes of a knob with one value: a view of a single zero."""
    return np.broadcast_to(np.zeros((), dtype=np.int32), (rows,))


def _renumbered(key: Rows, key_count: int) -> tuple[Rows, Rows]:
    """Returns keys renumbered as 0, 1, 2 and so on, and one row with each key."""
    if key_count > max(_MAX_KEYS, 4 * len(key)):
        _, some_row, number = np.unique(key, return_index=True, return_inverse=True)
        return number, some_row
    row_of = np.full(key_count, -1, dtype=np.intp)
    row_of[key] = np.arange(len(key))
    present = np.flatnonzero(row_of >= 0)
    if len(present) == key_count:
        return key, row_of
    number_of = np.empty(key_count, dtype=np.intp)
    number_of[present] = np.arange(len(present))
    return number_of[key], row_of[present]


def neighbours(plan: Plan, table: PlanTable) -> dict[int, str]:
    """Returns the rows of plans that differ from `plan` in one knob, in the order of the knobs.

    Each row has that knob. One change may have several neighbours, which differ in knobs that
    follow from it.
    """
    differing = _differing(plan, table)
    one_change = np.sum(list(differing.values()), axis=0) == 1
    return {
        int(row): name
        for name, mask in differing.items()
        for row in np.flatnonzero(mask & one_change)
    }


def differing_knobs(plan: Plan, other: Plan) -> tuple[str, ...]:
    """Returns the knobs in which two plans differ, except those that follow from another one."""
    differing = _differing(plan, PlanTable.of([other]))
    return tuple(name for name, mask in differing.items() if mask[0])


def _differing(plan: Plan, table: PlanTable) -> Mapping[str, Flags]:
    """Returns per knob the mask of the rows in which it differs, and not as a consequence."""
    raw = {knob.name: ~table.is_value(knob.name, getattr(plan, knob.name)) for knob in KNOBS}
    masks = dict[str, Flags]()
    for knob in KNOBS:
        differs = raw[knob.name]
        if differs.any():
            follows = _follows(knob.name, plan, table, raw)
            differs = differs & _is_active(knob, plan, table) & ~follows
        masks[knob.name] = differs
    return masks


def _is_active(knob: Knob, plan: Plan, table: PlanTable) -> Flags:
    """Returns the mask of the rows in which the knob is active; empty if it is not in the plan."""
    if knob.is_active is always:
        return np.ones(len(table), dtype=bool)
    if not knob.is_active({name: getattr(plan, name) for name in knob.depends_on}):
        return np.zeros(len(table), dtype=bool)
    group_of, cases = table.cases(knob.depends_on)
    return np.array([bool(knob.is_active(case)) for case in cases], dtype=bool)[group_of]


def _follows(name: str, plan: Plan, table: PlanTable, raw: Mapping[str, Flags]) -> Flags:
    causes = list(_causes(name, plan, table, raw))
    return np.any(causes, axis=0) if causes else np.zeros(len(table), dtype=bool)


def _causes(name: str, plan: Plan, table: PlanTable, raw: Mapping[str, Flags]) -> Iterator[Flags]:
    if name == "data":
        yield from (raw[other] for other in _DATA_DEPENDS_ON)
    if plan.engine != "torch":
        return
    torch = table.is_value("engine", "torch")
    if name == "zero_stage":  # FSDP cannot shard over one rank
        one_rank = table.is_value("data", 1)
        yield torch & raw["data"] & (np.ones_like(one_rank) if plan.data == 1 else one_rank)
    if name == "offload_parameters":  # FSDP offloads parameters and optimizer states together
        yield torch & raw["offload_optimizer"]
