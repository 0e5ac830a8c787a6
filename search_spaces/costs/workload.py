"""Everything that a forecast is made of before any coefficient: one value for many plans.

What depends on a few knobs alone (the work of a micro-batch, what it saves) is laid down once for
each case of them; plans refer to their case. Works of several models and devices can be put
together, so that coefficients are fitted to all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.costs.columns import (
    PASSES,
    CaseColumns,
    Kernels,
    PartBytes,
    PassSums,
    RowColumns,
    case_columns,
    kernels_of,
    part_bytes,
    row_columns,
    sums_of,
)
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_features import Counts, Numbers, PlanFeatures, concatenated
from search_spaces.hardware import Device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Work:
    """Plans, their cases, and the kernels of those."""

    executions: PlanFeatures
    rows: RowColumns
    cases: CaseColumns
    parts: PartBytes
    sums: PassSums
    kernels: Kernels

    def __len__(self) -> int:
        return len(self.executions)

    def take(self, rows: NDArray[Any]) -> Self:
        """The work of these plans, with all cases."""
        return replace(
            self,
            executions=self.executions.take(rows),
            rows=RowColumns(
                **{f.name: getattr(self.rows, f.name)[rows] for f in fields(RowColumns)}
            ),
        )


def work_of(footprint: Footprint, device: Device, executions: PlanFeatures) -> Work:
    """Lays down the work of plans of one model on one kind of device."""
    case_of_row, first = _cases(executions)
    cases = executions.take(first)
    tensor, micro_batch = cases.tensor.astype(float), cases.micro_batch.astype(float)
    computed = micro_batch * cases.filled  # held is what the longest samples need
    groups = [
        (footprint.variants[number], np.flatnonzero(cases.variant == number))
        for number in np.unique(cases.variant)
    ]
    kernels = [
        kernels_of(variant, footprint.depth, computed[found], tensor[found], found)
        for variant, found in groups
    ]
    return Work(
        executions=executions,
        rows=row_columns(footprint, device, executions, case_of_row),
        cases=case_columns(device, cases),
        parts=_scattered(
            PartBytes,
            len(first),
            [
                (found, part_bytes(variant, footprint.depth, micro_batch[found], tensor[found]))
                for variant, found in groups
            ],
        ),
        sums=_scattered(
            PassSums,
            len(first),
            [
                (found, sums_of(variant, footprint.depth, computed[found], tensor[found]))
                for variant, found in groups
            ],
        ),
        kernels=_joined(Kernels, kernels),
    )


def together(works: Sequence[Work]) -> Work:
    """One work with the plans of all of them, in their order."""
    starts = np.cumsum([0, *(len(work.cases.tensor) for work in works)])
    shifted = [
        replace(work.kernels, slot=work.kernels.slot + start * len(PASSES))
        for work, start in zip(works, starts, strict=False)
    ]
    rows = [
        replace(work.rows, case=work.rows.case + start)
        for work, start in zip(works, starts, strict=False)
    ]
    return Work(
        executions=concatenated([work.executions for work in works]),
        rows=_joined(RowColumns, rows),
        cases=_joined(CaseColumns, [work.cases for work in works]),
        parts=_joined(PartBytes, [work.parts for work in works]),
        sums=_joined(PassSums, [work.sums for work in works]),
        kernels=_joined(Kernels, shifted),
    )


def _cases(executions: PlanFeatures) -> tuple[Counts, Counts]:
    """The case of each row, and a row of each case."""
    keys = (
        executions.variant,
        executions.micro_batch,
        executions.filled,
        executions.tensor,
        executions.precision,
        executions.compiled,
        executions.fused,
    )
    code = np.zeros(len(executions), dtype=np.int64)
    for key in keys:
        known, positions = np.unique(key, return_inverse=True)
        code = code * len(known) + positions
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return inverse, first


def _scattered(kind: type[Any], count: int, found: list[tuple[Counts, Any]]) -> Any:
    """One value of `kind` whose rows lie where each of the found ones says."""
    columns: dict[str, Numbers] = {}
    for name in (f.name for f in fields(kind)):
        trailing = getattr(found[0][1], name).shape[1:]
        columns[name] = np.zeros((count, *trailing))
        for at, value in found:
            columns[name][at] = getattr(value, name)
    return kind(**columns)


def _joined(kind: type[Any], values: Sequence[Any]) -> Any:
    return kind(
        **{
            f.name: np.concatenate([getattr(value, f.name) for value in values])
            for f in fields(kind)
        }
    )
