"""Who proposes plans, what they know, and what they say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from search_spaces.costs.forecast import SearchPrior
from search_spaces.knobs.registry import KNOBS
from search_spaces.plan import Plan
from search_spaces.plan_table import Candidates, PlanTable, candidates_of
from search_spaces.trial import OutOfMemory, Record

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchState:
    """What is known when a plan is proposed.

    `free` says of each plan of the space whether no trial of it has ended or is under way; at
    least one is. `prospects` are the forecasts of all of them, None while there are none.
    """

    records: Sequence[Record]
    free: Flags
    running: tuple[Plan, ...] = ()
    prospects: SearchPrior | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan to try next, and why.

    `saving` is the share of a run's time that trying it is expected to save, and `seconds` what
    it takes; None where nobody can say.
    """

    plan: Plan
    why: str
    saving: float | None = None
    seconds: float | None = None


class AbstractProposer(ABC):
    """Proposes plans of one space."""

    @abstractmethod
    def propose(self, known: SearchState) -> Proposal:
        """One of the free plans."""

    def regret_bound(self, known: SearchState) -> float | None:
        """How much faster than the best any free plan is at most, with 95 %; None: unknown."""
        return None


def drop_dominated(untried: Sequence[Plan], records: Iterable[Record]) -> Sequence[Plan]:
    """The plans that may fit; all of them if none is left, for what is known is no validation.

    A plan is given up if it differs from one that ran out of memory only in knobs of which it
    is known in which direction memory grows, and each of them stands no lower.
    """
    table = candidates_of(untried).table
    hopeful = np.ones(len(table), dtype=bool)
    for record in records:
        hopeful[dominated_rows(table, record)] = False
    if not hopeful.any() or hopeful.all():
        return untried
    return Candidates(table.take(hopeful))


def dominated_rows(table: PlanTable, record: Record) -> NDArray[np.intp]:
    """The plans that cannot fit if this trial ran out of memory; none if it did not."""
    outcome = record.outcome
    if isinstance(outcome, OutOfMemory) and _is_graded(record.plan, outcome):
        return _hopeless(table, record.plan)
    return np.zeros(0, dtype=np.intp)


def _is_graded(plan: Plan, outcome: OutOfMemory) -> bool:
    """Not where the host was full of what blocks offload: recomputing fewer takes less of that."""
    return outcome.where == "device" or not plan.checkpoint_offload


def _hopeless(table: PlanTable, failed: Plan) -> NDArray[np.intp]:
    """The rows that need no less memory than a plan that ran out of it."""
    rows = np.arange(len(table))
    for knob in KNOBS:
        least, values = getattr(failed, knob.name), table.values[knob.name]
        if knob.memory:
            matching = [knob.memory * value >= knob.memory * least for value in values]
        else:
            matching = [value == least for value in values]
        if not all(matching):
            rows = rows[np.array(matching, dtype=bool)[table.codes[knob.name][rows]]]
    return rows
