"""Explanation of the best plan, compared to the baseline, with the path from there to it."""

from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.core.objective import quotient, record_of, speedup
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, complete_plan
from orchestrator.explain.effects import Change, changes
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured, Outcome

Seconds = tuple[tuple[str, float, float], ...]  # name of a phase or term, winner's, other's
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineComparison:
    """The baseline, which the best plan is compared to.

    Attributes:
        outcome: How its trial ended; None if it was not tried.
        ratio: Speed of the best plan over that of this plan, forecast if `measured` is false.
        equal: True if both are statistically equal.
        levers: The changes that lead from it to the best plan, with the gain of each.
        phases: Measured seconds of a step.
        terms: Forecast seconds of a step.
    """

    trial: int | None
    plan: Plan
    outcome: Outcome | None
    ratio: Estimate | None
    measured: bool
    equal: bool
    levers: tuple[Lever, ...]
    phases: Seconds
    terms: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BestExplanation:
    """The best plan of a study; `baseline` is None if that is the best plan."""

    study: str
    trial: Record
    baseline: BaselineComparison | None
    note: str = ""  # reason if nothing could be forecast


def explain_best(
    state: SweepState, best: Record, context: ForecastContext | None, note: str = ""
) -> BestExplanation:
    """Compares the best plan to the baseline; without a context, by measurements alone."""
    is_baseline = best.plan == state.space.baseline
    baseline = None if is_baseline else _comparison(state, best, context)
    return BestExplanation(study=state.study, trial=best, baseline=baseline, note=note)


def _comparison(
    state: SweepState, best: Record, context: ForecastContext | None
) -> BaselineComparison:
    plan = state.space.baseline
    tried = record_of(state.by_plan, plan)
    ratio = speedup(best, tried)
    terms: Seconds = ()
    measured = ratio is not None
    best_row = None if context is None else context.expected(best.plan)
    row = None if context is None else context.expected(plan)
    if best_row is not None and row is not None:
        seconds = zip(best_row.seconds, row.seconds, strict=True)
        terms = tuple((name, own, other) for (name, own), (_, other) in seconds if own or other)
        if not measured:
            ratio = quotient(best_row.forecast.samples_per_second, row.forecast.samples_per_second)
    return BaselineComparison(
        trial=None if tried is None else tried.number,
        plan=plan,
        outcome=None if tried is None else tried.outcome,
        ratio=ratio,
        measured=measured,
        equal=any(record.plan == plan for record in state.ties),
        levers=tuple(levers(state, context)),
        phases=_phases(best, tried),
        terms=terms,
    )


def _phases(best: Record, tried: Record | None) -> Seconds:
    outcomes = best.outcome, tried.outcome if tried else None
    own, other = (one.phases if isinstance(one, Measured) else None for one in outcomes)
    if own is None or other is None:
        return ()
    names = ("data", "forward", "backward", "optimizer")
    return tuple((name, getattr(own, name), getattr(other, name)) for name in names)


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
