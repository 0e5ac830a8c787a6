"""Explanation of a plan that was not tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.core.objective import quotient
from orchestrator.core.reasons import StopReason
from orchestrator.core.records import Record
from orchestrator.explain.context import ForecastContext, complete_plan
from orchestrator.explain.effects import Change, changes
from orchestrator.forecast.request import RECOMMENDED_FIT_PROBABILITY
from orchestrator.forecast.table import ForecastRow
from orchestrator.search.base import dominated_rows
from search_spaces.costs.host_memory import HOST_SHARE
from search_spaces.knobs.registry import KNOBS, lossy_knobs
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.trial import Estimate, Measured, OutOfMemory, Refused

Verdict = Literal[
    "tried",  # as `trial`
    "ruled_out",  # forbidden by `rule`
    "not_in_the_space",  # legal, but the specification does not search its values
    "dominated",  # needs no less memory than `trial`, which ran out of it
    "forecast_not_to_fit",
    "forecast_to_be_slower",
    "not_reached",  # the sweep ended first, or is still running
]
Bound = Literal["host", "limit", "usable", "certainty"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyTried:
    """A trial has run the plan."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A rule forbids the plan."""

    refused: Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueNotSearched:
    """The specification does not search a value of the plan, only others of this knob."""

    knob: str
    value: Any
    searched: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CombinationNotSearched:
    """Each value is searched, but not together: values of a knob depend on other knobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsNoLess:
    """The plan needs no less memory than a trial that ran out of it."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MayNotFit:
    """The forecast peak exceeds a bound, or is too close to the limit.

    Attributes:
        bound: Host memory of a node, the limit, the limit minus the headroom, or none: the plan
            fits, but not surely enough.
        bound_bytes: The bound, or the limit where there is none.
        needed_bytes: Forecast peak, or forecast host memory.
        fits: Probability to fit.
    """

    bound: Bound
    bound_bytes: float
    needed_bytes: Estimate
    fits: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastSpeed:
    """Forecast speed over that of the best trial."""

    ratio: Estimate
    best: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOver:
    """The sweep ended before it reached the plan; `ended` is None if no end is recorded."""

    trials: int
    ended: StopReason | None


UntriedReason = (
    AlreadyTried
    | RuledOut
    | ValueNotSearched
    | CombinationNotSearched
    | NeedsNoLess
    | MayNotFit
    | ForecastSpeed
    | SweepOver
)
Cause = tuple[Verdict, tuple[UntriedReason, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedExplanation:
    """A plan, and the reasons why it was not tried.

    Attributes:
        like: Trial of the plan that supplied the knobs not named. None if it was not tried.
        reasons: The decisive one first.
        ratio: Forecast speed over that of the best plan.
    """

    study: str
    plan: Plan | None  # None if no plan has these knobs
    lossy: tuple[str, ...]  # knobs that change the numerics
    like: int | None
    changes: tuple[Change, ...]
    verdict: Verdict
    rule: str
    trial: int | None
    reasons: tuple[UntriedReason, ...]
    expected: ForecastRow | None
    ratio: Estimate | None


def explain_untried(knobs: Mapping[str, Any], context: ForecastContext) -> UntriedExplanation:
    """Explains why a plan was not tried.

    Args:
        knobs: Values of some knobs; the others are those of the best plan, or else the baseline.
        context: The study and its forecasts.
    """
    best = context.state.best
    template = context.state.space.baseline if best is None else best.plan
    searched = context.sized.table.values
    domains = {knob.name: searched[knob.name] for knob in KNOBS}
    batch = context.state.spec.train.global_batch
    completed = complete_plan(knobs, template, domains, batch)
    plan = None if isinstance(completed, Refused) else completed
    verdict: Verdict = "ruled_out"
    if isinstance(completed, Refused):
        reasons: tuple[UntriedReason, ...] = (RuledOut(refused=completed),)
    else:
        verdict, reasons = _cause(completed, best, domains, knobs, context)
    decisive, tried = reasons[0], context.record_of(template)
    expected = None if plan is None else context.expected(plan)
    return UntriedExplanation(
        study=context.state.study,
        plan=plan,
        lossy=() if plan is None else lossy_knobs(plan, context.state.spec),
        like=None if tried is None else tried.number,
        changes=() if plan is None else changes(template, plan),
        verdict=verdict,
        rule=decisive.refused.rule if isinstance(decisive, RuledOut) else "",
        trial=decisive.trial if isinstance(decisive, AlreadyTried | NeedsNoLess) else None,
        reasons=reasons,
        expected=expected,
        ratio=_speed_ratio(expected, best),
    )


def _cause(
    plan: Plan,
    best: Record | None,
    domains: Mapping[str, Values],
    named: Collection[str],
    context: ForecastContext,
) -> Cause:
    if (tried := context.record_of(plan)) is not None:
        return "tried", (AlreadyTried(trial=tried.number),)
    outside = tuple(_values_outside(plan, domains, named))
    if (refused := context.refusal(plan)) is not None:
        return "ruled_out", (RuledOut(refused=refused), *outside)
    if not len(context.sized.table.rows_of(plan)):
        return "not_in_the_space", outside or (CombinationNotSearched(),)
    if (oom := _dominator(plan, context)) is not None:
        return "dominated", (NeedsNoLess(trial=oom.number), _end(context))
    return _forecast_cause(plan, best, context)


def _forecast_cause(plan: Plan, best: Record | None, context: ForecastContext) -> Cause:
    """Returns the cause for a plan that the search could have proposed."""
    expected = context.expected(plan)
    assert expected is not None  # it is in the space
    memory, ratio, end = _memory(expected, context), _speed_ratio(expected, best), _end(context)
    speed: tuple[UntriedReason, ...] = ()
    if best is not None and ratio is not None:
        speed = (ForecastSpeed(ratio=ratio, best=best.number),)
    if memory is not None:
        return "forecast_not_to_fit", (memory, *speed, end)
    if ratio is not None and ratio.value < 1:
        return "forecast_to_be_slower", (*speed, end)
    return "not_reached", (end, *speed)


def _values_outside(
    plan: Plan, domains: Mapping[str, Values], named: Collection[str]
) -> Iterator[ValueNotSearched]:
    """Yields the values that `space` does not search: those of named knobs, or else of all."""
    outside = [name for name, values in domains.items() if getattr(plan, name) not in values]
    for name in [name for name in outside if name in named] or outside:
        value, searched = getattr(plan, name), tuple(domains[name])
        yield ValueNotSearched(knob=name, value=value, searched=searched)


def _dominator(plan: Plan, context: ForecastContext) -> Record | None:
    """Returns the first trial that ran out of memory although it needed no more than this plan."""
    table = PlanTable.of([plan])
    return next(
        (
            record
            for record in context.state.records
            if isinstance(record.outcome, OutOfMemory) and len(dominated_rows(table, record))
        ),
        None,
    )


def _memory(expected: ForecastRow, context: ForecastContext) -> MayNotFit | None:
    """Returns the reason why a plan is not expected to fit, None if it is."""
    question, peak, fits = context.question, expected.forecast.peak_bytes, expected.forecast.fits
    host, limit = expected.forecast.host_bytes, float(question.limit_bytes)
    host_limit = HOST_SHARE * question.device.node_host_bytes
    held = Estimate(value=host, low=host, high=host)
    bounds: tuple[tuple[Bound, float, Estimate, bool], ...] = (
        ("host", host_limit, held, host > host_limit),
        ("limit", limit, peak, peak.value > limit),
        ("usable", question.line_bytes, peak, peak.value > question.line_bytes),
        ("certainty", limit, peak, fits < RECOMMENDED_FIT_PROBABILITY),
    )
    for bound, size, needed, exceeded in bounds:
        if exceeded:
            return MayNotFit(bound=bound, bound_bytes=size, needed_bytes=needed, fits=fits)
    return None


def _speed_ratio(expected: ForecastRow | None, best: Record | None) -> Estimate | None:
    if expected is None or best is None or not isinstance(best.outcome, Measured):
        return None
    return quotient(expected.forecast.samples_per_second, best.outcome.samples_per_second)


def _end(context: ForecastContext) -> SweepOver:
    ended = context.state.ended
    return SweepOver(
        trials=len(context.state.records), ended=None if ended is None else ended.reason
    )
