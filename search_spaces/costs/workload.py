"""Workload of many plans: the inputs of a forecast that do not depend on coefficients.

Columns that depend on only a few knobs (the work of a micro-batch and the tensors that it saves)
are calculated once per case of these knobs; plans refer to their case. Workloads of several models
and devices can be concatenated, to fit coefficients to all of them at once.
"""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from search_spaces.costs import columns
from search_spaces.costs.footprint import Footprint
from search_spaces.costs.plan_features import Counts, PlanFeatures
from search_spaces.hardware.device import Device


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Workload of plans: rows for plans, for their cases, and for the kernels of the cases."""

    executions: PlanFeatures
    rows: columns.RowColumns
    cases: columns.CaseColumns
    parts: columns.PartBytes
    sums: columns.PassSums
    kernels: columns.Kernels

    def __len__(self) -> int:
        return len(self.executions)

    def take(self, rows: NDArray[Any] | slice) -> Self:
        """Returns the workload of these plans, with all cases."""
        return replace(self, executions=self.executions.take(rows), rows=self.rows.take(rows))


def workload_of(footprint: Footprint, device: Device, executions: PlanFeatures) -> Workload:
    """Calculates the workload of plans of one model on one device."""
    case_of_row, first = _cases(executions)
    cases = executions.take(first)
    tensor, micro_batch = cases.tensor.astype(float), cases.micro_batch.astype(float)
    computed = micro_batch * cases.filled  # memory is that of the longest samples, work is not
    longest = micro_batch * cases.longest_filled
    groups = [
        (footprint.variants[number], np.flatnonzero(cases.variant == number))
        for number in np.unique(cases.variant)
    ]
    order = np.argsort(np.concatenate([group for _, group in groups]))  # of cases in groups
    parts, sums, kernels = [], [], []
    for variant, group in groups:
        sizes = variant, footprint.depth
        parts.append(columns.part_bytes(*sizes, longest[group], tensor[group]))
        sums.append(columns.pass_sums(*sizes, computed[group], tensor[group]))
        kernels.append(columns.kernels_of(*sizes, computed[group], tensor[group], group))
    joined = columns.Kernels.joined(kernels)
    if device.kind == "tpu":
        joined = columns.padded_to_units(joined, columns.PADDED)
    return Workload(
        executions=executions,
        rows=columns.row_columns(footprint, device, executions, case_of_row),
        cases=columns.case_columns(footprint, device, cases),
        parts=columns.PartBytes.joined(parts).take(order),
        sums=columns.PassSums.joined(sums).take(order),
        kernels=columns.with_measured_rates(joined, device, cases),
    )


def _cases(executions: PlanFeatures) -> tuple[Counts, Counts]:
    """Returns the case number of each row, and one row of each case."""
    keys = (
        executions.variant,
        executions.micro_batch,
        executions.filled,
        executions.longest_filled,
        executions.tensor,
        executions.precision,
        executions.compiled,
        executions.fused,
        executions.own_loop,
        executions.stack,
    )
    code = np.zeros(len(executions), dtype=np.int64)
    for key in keys:
        values, positions = np.unique(key, return_inverse=True)
        code = code * len(values) + positions
    _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
    return inverse, first
