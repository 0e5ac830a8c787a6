"""Path from the baseline to the best plan, one knob at a time, with the gain of each change."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.objective import quotient, record_of
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, complete_plan
from orchestrator.explain.effects import Change, changes
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured

_Speed = tuple[Estimate, int | None]  # of a plan, and its trial; None if it is forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change on the path from the baseline to the best plan, `other_value` to `value`.

    Attributes:
        changes: Several if no plan with one of them is measured, or forecast to fit.
        samples_per_second: Speed with this change and those before; forecast without a `trial`.
        ratio: That speed over the one before (`measured` if both were); all multiply to the total.
    """

    changes: tuple[Change, ...]
    samples_per_second: Estimate
    trial: int | None
    ratio: Estimate | None
    measured: bool


def levers(state: SweepState, context: ForecastContext | None) -> Iterator[Lever]:
    """Yields the changes that lead from the baseline to the best plan.

    Each plan is followed by the fastest that was measured, or else by the fastest that is forecast
    to fit. Without a context, all are measured.
    """
    plan, best = state.space.baseline, state.best
    before = _speed(plan, state, context)
    while best is not None and before is not None and plan != best.plan:
        speeds = {near: _speed(near, state, context) for near in _steps(plan, best.plan, state)}
        known = {near: speed for near, speed in speeds.items() if speed is not None}
        following = max(
            known, key=lambda near: (known[near][1] is not None, known[near][0].value), default=None
        )
        speed = known[following] if following else (_speed(best.plan, state, context) or before)
        yield Lever(
            changes=changes(following or best.plan, plan),
            samples_per_second=speed[0],
            trial=speed[1],
            ratio=quotient(speed[0], before[0]),
            measured=before[1] is not None and speed[1] is not None,
        )
        plan, before = following or best.plan, speed


def _steps(plan: Plan, best: Plan, state: SweepState) -> Iterator[Plan]:
    """Yields the plans with one more knob at its value in the best plan."""
    ahead = changes(best, plan)
    for one in ahead:
        domains = dict(state.space.domains)
        near = complete_plan({one.knob: one.value}, plan, domains, plan.global_batch)
        if isinstance(near, Plan) and (left := len(changes(best, near))) < len(ahead):
            yield near if left else best


def _speed(plan: Plan, state: SweepState, context: ForecastContext | None) -> _Speed | None:
    if (tried := record_of(state.by_plan, plan)) is not None:
        outcome = tried.outcome
        return (outcome.samples_per_second, tried.number) if isinstance(outcome, Measured) else None
    row = None if context is None else context.expected(plan)
    return (row.forecast.samples_per_second, None) if row and row.keeps_headroom else None
