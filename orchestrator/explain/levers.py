"""Path from the baseline to the best plan, one knob at a time, with the gain of each change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.objective import quotient, record_of
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, complete_plan
from orchestrator.explain.effects import Change, changes
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One change on the path from the baseline to the best plan.

    Attributes:
        changes: The knobs that change, `other_value` to `value`; several if no plan with one of
            them is measured, or forecast to fit.
        samples_per_second: Speed of the plan with this change and those before.
        trial: Trial of that plan; None if its speed is forecast.
        ratio: That speed over the speed before. The ratios of a path multiply to its speed-up.
        measured: True if both were measured.
    """

    changes: tuple[Change, ...]
    samples_per_second: Estimate
    trial: int | None
    ratio: Estimate | None
    measured: bool


def levers(state: SweepState, context: ForecastContext | None) -> tuple[Lever, ...]:
    """Returns the changes that lead from the baseline to the best plan, the largest gain first.

    Each plan is followed by a measured one if there is any, or else by one that is forecast to fit;
    of several by the fastest. Without a context, all are measured.
    """
    plan, best = state.space.baseline, state.best
    before = _speed(plan, state, context)
    if best is None or before is None:
        return ()
    path = []
    while plan != best.plan:
        speeds = {
            near: speed
            for near in _steps(plan, best.plan, state)
            if (speed := _speed(near, state, context)) is not None
        }
        following = max(speeds, key=lambda near: _preference(speeds[near]), default=best.plan)
        speed = speeds.get(following) or _speed(best.plan, state, context)
        assert speed is not None
        path.append(
            Lever(
                changes=changes(following, plan),
                samples_per_second=speed[0],
                trial=speed[1],
                ratio=quotient(speed[0], before[0]),
                measured=before[1] is not None and speed[1] is not None,
            )
        )
        plan, before = following, speed
    return tuple(path)


_Speed = tuple[Estimate, int | None]  # of a plan, and its trial; None if it is forecast


def _preference(speed: _Speed) -> tuple[bool, float]:
    return speed[1] is not None, speed[0].value


def _steps(plan: Plan, best: Plan, state: SweepState) -> Iterator[Plan]:
    """Yields the plans with one more knob at its value in the best plan."""
    ahead = changes(best, plan)
    for change in ahead:
        values = {change.knob: change.value}
        near = complete_plan(values, plan, dict(state.space.domains), plan.global_batch)
        if isinstance(near, Plan) and (left := len(changes(best, near))) < len(ahead):
            yield near if left else best


def _speed(plan: Plan, state: SweepState, context: ForecastContext | None) -> _Speed | None:
    tried: Record | None = record_of(state.by_plan, plan)
    if tried is not None:
        outcome = tried.outcome
        return (outcome.samples_per_second, tried.number) if isinstance(outcome, Measured) else None
    row = None if context is None else context.expected(plan)
    return (row.forecast.samples_per_second, None) if row and row.keeps_headroom else None
