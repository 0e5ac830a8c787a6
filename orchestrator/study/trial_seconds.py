"""What trials are expected to take: for choosing between them, not for ending them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from search_spaces.outcome import Costs, Measured
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.record import Record
from search_spaces.spec.objective_section import ObjectiveSpec

Numbers = NDArray[np.float64]

# Another group of workers: measured with Ray 2.60 (benchmarks/results/trial_overhead.json)
RESTART_SECONDS = 12.0
_BUILD_SECONDS = 3.0  # while no trial has told
_WARM_UP = 3  # steps beside those that count: the worst one and the warm-up
# what is settled when workers are started: see `render_environment`
_PROCESSES = ("data", "tensor", "pipeline", "allocator")


class TrialSeconds:
    """Expected seconds of a trial of each plan of a table."""

    def __init__(self, table: PlanTable, objective: ObjectiveSpec) -> None:
        """Knows no forecast yet."""
        self._objective = objective
        self._world = np.prod([table.column(name) for name in _PROCESSES[:3]], axis=0)
        self._table = table

    def of(
        self, step_seconds: Numbers | None, records: Sequence[Record], there: Plan | None
    ) -> Numbers:
        """Of shape (plans,).

        Args:
            step_seconds: Forecast seconds of a step of each, None without a forecast.
            records: Of the study.
            there: A plan that runs in the processes that are there, None if there are none.
        """
        told = tuple(_costs(records))
        build = statistics.median(_unsteady(told)) if told else _BUILD_SECONDS
        if step_seconds is None:
            usual = statistics.median(cost.steps_seconds for cost in told) if told else build
            steps = np.full(len(self._table), usual)
        else:
            wanted = step_seconds * (self._objective.min_steps + _WARM_UP)
            steps = np.minimum(wanted, self._objective.max_seconds + _WARM_UP * step_seconds)
        return build + steps + RESTART_SECONDS * self._needs_others(there)

    def _needs_others(self, there: Plan | None) -> NDArray[np.bool_]:
        if there is None:
            return np.zeros(len(self._table), dtype=bool)
        others: NDArray[np.bool_] = self._world != there.world_size
        return others | ~self._table.is_value("allocator", there.allocator)


def _costs(records: Sequence[Record]) -> list[Costs]:
    return [record.outcome.costs for record in records if isinstance(record.outcome, Measured)]


def _unsteady(told: Sequence[Costs]) -> list[float]:
    return [max(cost.total_seconds - cost.steps_seconds, 0.0) for cost in told]
