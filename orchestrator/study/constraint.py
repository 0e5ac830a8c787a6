"""What a plan must keep as graded constraints: what Optuna's samplers learn from one that does not.

Memory is one of them, also where a plan ran out of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.core.objective import Goal
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Record

CONSTRAINT = "memory"
# Optuna 4 kept constraints under this key as a list, and optuna-dashboard 0.21 reads no other:
# Optuna 5 keeps each under a key of its own ("constraints:memory"), which that version passes over
LISTED = "constraints"
_BEYOND = 1e-6  # a plan that ran out of memory is infeasible even without head-room


def constraints_of(record: Record, goal: Goal) -> Mapping[str, float]:
    """By how much a trial misses what is asked for, as a share: at 0 or below it does not.

    `memory` is the peak, or the bytes wanted, over what the head-room leaves of the limit; others
    are what `Goal.least` names, of which a plan that ran out of memory reaches nothing. Empty for
    endings that say nothing of them.
    """
    match record.outcome:
        case Measured(memory=memory):
            missed = {CONSTRAINT: memory.share / (1 - goal.headroom) - 1}
            for metric, least in goal.least:
                reached = goal.value(record, metric)
                missed[metric] = 1.0 if reached is None else 1 - reached.value / least
            return missed
        case OutOfMemory(excess=excess):
            wanted = (1 + (excess or 0.0)) / (1 - goal.headroom) - 1 + _BEYOND
            return {CONSTRAINT: wanted} | {metric: 1.0 for metric, _ in goal.least}
        case _:
            return {}
