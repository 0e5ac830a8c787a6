"""Interface of the samplers, and the plans that a trial out of memory rules out."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from orchestrator.core.inputs import PlanProposed
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from search_spaces.costs.forecast import SearchPrior
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.trial import OutOfMemory


class AbstractProposer(ABC):
    """Proposes plans of one space, from the state of a sweep and the forecasts of all plans.

    The forecasts, `prior`, are None before there are any.
    """

    @abstractmethod
    def propose(self, sweep: SweepState, prior: SearchPrior | None) -> PlanProposed:
        """Chooses an untried plan; there must be one."""

    @abstractmethod
    def leaders(self, sweep: SweepState, prior: SearchPrior | None, count: int) -> tuple[Plan, ...]:
        """Returns at most `count` feasible plans, the best first, then its hardest challengers.

        The best alone if no other is likely to be faster by more than `objective.interval`.
        """

    @abstractmethod
    def regret_bound(self, sweep: SweepState, prior: SearchPrior | None) -> float | None:
        """Returns by how much any untried plan can beat the incumbent, as a ratio of speeds.

        Holds with 95 % confidence. None if nothing was measured, or if the sampler has no model to
        derive it from.
        """


def drop_dominated(untried: Sequence[Plan], records: Iterable[Record]) -> PlanTable:
    """Drops plans dominated by one that ran out of memory.

    A plan is dominated if it differs from the failed one only in knobs with a known effect on
    memory, and none of them is set to need less.

    Returns:
        The other plans; all of them if every plan is dominated, since dominance is not certain.
    """
    table = PlanTable.of(untried)
    undominated = np.ones(len(table), dtype=bool)
    for record in records:
        undominated[dominated_rows(table, record)] = False
    if not undominated.any() or undominated.all():
        return table
    return table.take(undominated)


def dominated_rows(table: PlanTable, record: Record) -> NDArray[np.intp]:
    """Returns the rows of plans that cannot fit, given this trial; none unless it ran out."""
    outcome = record.outcome
    # A host that checkpoint offload has filled breaks the order: fewer recomputed blocks need less
    if isinstance(outcome, OutOfMemory) and (
        outcome.where == "device"
        or not (record.plan.checkpoint_offload or record.plan.offloaded_blocks)
    ):
        return _rows_needing_no_less(table, record.plan)
    return np.zeros(0, dtype=np.intp)


def _rows_needing_no_less(table: PlanTable, failed: Plan) -> NDArray[np.intp]:
    """Returns the rows of plans that need at least as much memory as the failed one."""
    rows = np.arange(len(table))
    for knob in KNOBS:
        limit, values = getattr(failed, knob.name), table.values[knob.name]
        if knob.memory:
            matching = [knob.memory * value >= knob.memory * limit for value in values]
        else:
            matching = [value == limit for value in values]
        if not all(matching):
            rows = rows[np.array(matching, dtype=bool)[table.codes[knob.name][rows]]]
    return rows
