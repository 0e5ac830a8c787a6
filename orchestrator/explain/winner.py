"""Explanation of the best plan, compared to the baseline."""

from dataclasses import dataclass

from orchestrator.core.objective import quotient, record_of, speedup
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.explain.levers import Lever, levers
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured, Outcome

Seconds = tuple[tuple[str, float, float], ...]  # name of a phase or term, winner's, other's


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
