"""Explanation of a plan that was not tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.explain.context import ForecastContext, complete_plan, without_accelerator
from orchestrator.explain.effects import Change, changes
from orchestrator.forecast.request import RECOMMENDED_FIT_PROBABILITY
from orchestrator.forecast.table import Expected
from orchestrator.report.format import gib, plural
from orchestrator.report.labels import lossy_words
from orchestrator.report.sweep_tables import quotient
from orchestrator.search.base import dominated_rows
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.space import build_space
from search_spaces.trial import Estimate, Measured, OutOfMemory, Record, Refused

Verdict = Literal[
    "tried",  # as `trial`
    "ruled_out",  # forbidden by `rule`
    "not_in_the_space",  # legal, but the specification does not search its values
    "dominated",  # needs no less memory than `trial`, which ran out of it
    "forecast_not_to_fit",
    "forecast_to_be_slower",
    "not_reached",  # the sweep ended first, or is still running
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedExplanation:
    """A plan, and the reasons why it was not tried.

    Attributes:
        like: Trial of the plan that supplied the knobs not named. None if it was not tried.
        reasons: Sentences, the decisive one first.
        ratio: Forecast speed over that of the best plan.
    """

    study: str
    plan: Plan | None  # None if no plan has these knobs
    lossy: str  # knobs that change the numerics; empty if lossless
    like: int | None
    changes: tuple[Change, ...]
    verdict: Verdict
    rule: str
    trial: int | None
    reasons: tuple[str, ...]
    expected: Expected | None
    ratio: Estimate | None


def explain_untried(knobs: Mapping[str, Any], context: ForecastContext) -> UntriedExplanation:
    """Explains why a plan was not tried.

    Args:
        knobs: Values of some knobs; the others are those of the best plan, or else the baseline.
        context: The study and its forecasts.
    """
    best = context.state.best
    template = context.state.space.baseline if best is None else best.plan
    space = build_space(context.around, context.question.ranks[0])
    domains = dict(space.domains)
    values = {name: value for name, value in knobs.items() if name != "accelerator"}
    batch = context.state.spec.train.global_batch
    plan = complete_plan(values, without_accelerator(template), domains, batch)
    tried = context.record_of(without_accelerator(template))
    number = None if tried is None else tried.number
    if isinstance(plan, Refused):
        return _untried(context, None, number, _ruled_out(plan))
    return _untried(context, plan, number, _cause(plan, best, domains, values, context))


@dataclass(frozen=True, slots=True)
class _Cause:
    verdict: Verdict
    reasons: tuple[str, ...]
    rule: str = ""
    trial: int | None = None


def _untried(
    context: ForecastContext, plan: Plan | None, like: int | None, cause: _Cause
) -> UntriedExplanation:
    best = context.state.best
    other = context.state.space.baseline if best is None else best.plan
    forecast = None if plan is None else context.expected(plan)
    return UntriedExplanation(
        study=context.state.study,
        plan=plan,
        lossy="" if plan is None else lossy_words(plan, context.state.spec),
        like=like,
        changes=() if plan is None else changes(without_accelerator(other), plan),
        verdict=cause.verdict,
        rule=cause.rule,
        trial=cause.trial,
        reasons=cause.reasons,
        expected=forecast,
        ratio=_speed_ratio(forecast, best),
    )


def _cause(
    plan: Plan,
    best: Record | None,
    domains: Mapping[str, Values],
    named: Collection[str],
    context: ForecastContext,
) -> _Cause:
    if (tried := context.record_of(plan)) is not None:
        return _Cause("tried", (f"it was tried, as trial {tried.number}",), trial=tried.number)
    outside = tuple(_values_outside(plan, domains, named))
    if (refused := context.refusal(plan)) is not None:
        return _ruled_out(refused, *outside)
    if not len(context.sized.table.rows_of(plan)):
        return _Cause("not_in_the_space", outside or (_combination_outside(),))
    if (oom := _dominator(plan, context)) is not None:
        reason = f"trial {oom.number} ran out of memory, and this plan needs no less memory"
        return _Cause("dominated", (reason, _end(context)), trial=oom.number)
    return _forecast_cause(plan, best, context)


def _ruled_out(refused: Refused, *more: str) -> _Cause:
    reason = f"{refused.detail} (rule: {refused.rule.replace('_', ' ')})"
    return _Cause("ruled_out", (reason, *more), refused.rule)


def _forecast_cause(plan: Plan, best: Record | None, context: ForecastContext) -> _Cause:
    """The cause, for a plan that the search could have proposed."""
    forecast = context.expected(plan)
    assert forecast is not None  # it is in the space
    memory, ratio = _memory(forecast, context), _speed_ratio(forecast, best)
    slower = "" if ratio is None else _slower(ratio, best)
    if memory:
        return _Cause("forecast_not_to_fit", (memory, *([slower] if slower else []), _end(context)))
    if ratio is not None and ratio.value < 1:
        return _Cause("forecast_to_be_slower", (slower, _end(context)))
    return _Cause("not_reached", (_end(context), *([slower] if slower else [])))


def _values_outside(
    plan: Plan, domains: Mapping[str, Values], named: Collection[str]
) -> Iterator[str]:
    """Yields the values that `space` does not search: those of named knobs, or else of all."""
    outside = [name for name, values in domains.items() if getattr(plan, name) not in values]
    for name in [name for name in outside if name in named] or outside:
        value, values = getattr(plan, name), domains[name]
        searched = ", ".join(map(_value, values))
        yield f"space.{name} does not include {_value(value)}, only {searched}"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _combination_outside() -> str:
    return (
        "each of its values is searched, but not this combination: the values of a knob depend on"
        " other knobs (docs/knobs.md); to search them, list them in space"
    )


def _dominator(plan: Plan, context: ForecastContext) -> Record | None:
    """The first trial that ran out of memory although it needed no more than this plan."""
    table = PlanTable.of([plan])
    return next(
        (
            record
            for record in context.records
            if isinstance(record.outcome, OutOfMemory) and len(dominated_rows(table, record))
        ),
        None,
    )


def _memory(forecast: Expected, context: ForecastContext) -> str:
    """The reason why a plan is not expected to fit; empty if it is."""
    limit, line = context.question.limit_bytes, context.question.line_bytes
    peak = forecast.peak_bytes
    words = f"its forecast peak is {gib(peak.value)} GiB ({gib(peak.low)} to {gib(peak.high)})"
    fits = f"{100 * forecast.fits:.0f} % likely to fit"
    if forecast.host_bytes > context.question.host_limit_bytes:
        return (
            f"it would offload {gib(forecast.host_bytes)} GiB to host memory, more than the share"
            " of a rank"
        )
    if peak.value > limit:
        return f"{words}, above the limit of {gib(limit)} GiB: {fits}"
    if peak.value > line:
        return f"{words}, above {gib(line)} GiB, the limit minus the headroom: {fits}"
    if forecast.fits < RECOMMENDED_FIT_PROBABILITY:
        return f"{words}, too close to the limit of {gib(limit)} GiB: {fits}"
    return ""


def _slower(ratio: Estimate, best: Record | None) -> str:
    assert best is not None
    words = f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
    unsure = "" if ratio.high < 1 or ratio.value >= 1 else ", so it may be as fast"
    return f"its forecast speed is {words} that of trial {best.number}{unsure}"


def _speed_ratio(forecast: Expected | None, best: Record | None) -> Estimate | None:
    if forecast is None or best is None or not isinstance(best.outcome, Measured):
        return None
    return quotient(forecast.samples_per_second, best.outcome.samples_per_second)


def _end(context: ForecastContext) -> str:

    trials, ended = plural(len(context.state.records), "trial"), context.state.ended
    if ended is None:
        return f"no end of the sweep is recorded; so far it has {trials}"
    return f"the sweep ended before this plan was reached, after {trials}: {ended.reason}"
