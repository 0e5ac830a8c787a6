"""Memory as a graded constraint: what Optuna's samplers learn from a plan that does not fit."""

from __future__ import annotations

from search_spaces.outcome import Measured, Outcome, OutOfMemory

CONSTRAINT = "memory"
_BEYOND = 1e-6  # a plan that ran out of memory is infeasible even without head-room


def constraint_of(outcome: Outcome, headroom: float) -> float | None:
    """Peak or wanted bytes over what the head-room leaves of the limit, less 1.

    At 0 or below the plan is feasible. None for endings that say nothing about memory.

    Args:
        outcome: How a trial ended.
        headroom: Share of the limit that must stay free.
    """
    match outcome:
        case Measured(memory=memory):
            return memory.share / (1 - headroom) - 1
        case OutOfMemory(excess=excess):
            return (1 + (excess or 0.0)) / (1 - headroom) - 1 + _BEYOND
        case _:
            return None
