"""Why a plan was not tried."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.explain.context import ForecastContext, plan_asked, without_accelerator
from orchestrator.explain.effects import Change, changes
from orchestrator.forecast.request import SURE_TO_FIT
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
    "tried",  # it was, as `trial`
    "ruled_out",  # a rule forbids it: `rule`
    "not_in_the_space",  # it is legal, and the specification searches other values
    "dominated",  # `trial` ran out of memory, and it needs no less
    "forecast_not_to_fit",
    "forecast_to_be_slower",
    "not_reached",  # the sweep ended before, or goes on
]


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedExplanation:
    """A plan that somebody asks about, and what kept it from being tried.

    `reasons` are sentences, the one that decided first. `like` is the trial of the plan that gave
    the knobs which were not named, None if it was not tried; `ratio` the plan's speed over the
    winner's by forecast.
    """

    study: str
    plan: Plan | None  # None where no plan has the knobs
    lossy: str  # which of its knobs change the numerics, empty if none does
    like: int | None
    changes: tuple[Change, ...]
    verdict: Verdict
    rule: str
    trial: int | None
    reasons: tuple[str, ...]
    expected: Expected | None
    ratio: Estimate | None


def explain_untried(asked: Mapping[str, Any], ground: ForecastContext) -> UntriedExplanation:
    """What kept the plan with these knobs, the rest as the winner has them, from being tried."""
    best = ground.state.best
    like = ground.state.space.baseline if best is None else best.plan
    space = build_space(ground.around, ground.question.ranks[0])
    domains = dict(space.domains)
    named = {name: value for name, value in asked.items() if name != "accelerator"}
    batch = ground.state.spec.train.global_batch
    plan = plan_asked(named, without_accelerator(like), domains, batch)
    tried = ground.record_of(without_accelerator(like))
    number = None if tried is None else tried.number
    if isinstance(plan, Refused):
        return _untried(ground, None, number, _ruled_out(plan))
    return _untried(ground, plan, number, _found(plan, best, domains, named, ground))


@dataclass(frozen=True, slots=True)
class _Found:
    verdict: Verdict
    reasons: tuple[str, ...]
    rule: str = ""
    trial: int | None = None


def _untried(
    ground: ForecastContext, plan: Plan | None, like: int | None, found: _Found
) -> UntriedExplanation:
    best = ground.state.best
    other = ground.state.space.baseline if best is None else best.plan
    told = None if plan is None else ground.expected(plan)
    return UntriedExplanation(
        study=ground.state.study,
        plan=plan,
        lossy="" if plan is None else lossy_words(plan, ground.state.spec),
        like=like,
        changes=() if plan is None else changes(without_accelerator(other), plan),
        verdict=found.verdict,
        rule=found.rule,
        trial=found.trial,
        reasons=found.reasons,
        expected=told,
        ratio=_over(told, best),
    )


def _found(
    plan: Plan,
    best: Record | None,
    domains: Mapping[str, Values],
    asked: Collection[str],
    ground: ForecastContext,
) -> _Found:
    if (tried := ground.record_of(plan)) is not None:
        return _Found("tried", (f"it was tried, as trial {tried.number}",), trial=tried.number)
    outside = tuple(_outside(plan, domains, asked))
    if (refused := ground.refusal(plan)) is not None:
        return _ruled_out(refused, *outside)
    if not len(ground.sized.table.rows_of(plan)):
        return _Found("not_in_the_space", outside or (_nowhere(),))
    if (lost := _dominator(plan, ground)) is not None:
        told = f"trial {lost.number} ran out of memory, and this plan needs no less than that one"
        return _Found("dominated", (told, _end(ground)), trial=lost.number)
    return _judged(plan, best, ground)


def _ruled_out(refused: Refused, *more: str) -> _Found:
    told = f"{refused.detail} (rule: {refused.rule.replace('_', ' ')})"
    return _Found("ruled_out", (told, *more), refused.rule)


def _judged(plan: Plan, best: Record | None, ground: ForecastContext) -> _Found:
    """Of a plan that a search may propose."""
    told = ground.expected(plan)
    assert told is not None  # it is in the space
    memory, ratio = _memory(told, ground), _over(told, best)
    slower = "" if ratio is None else _slower(ratio, best)
    if memory:
        return _Found("forecast_not_to_fit", (memory, *([slower] if slower else []), _end(ground)))
    if ratio is not None and ratio.value < 1:
        return _Found("forecast_to_be_slower", (slower, _end(ground)))
    return _Found("not_reached", (_end(ground), *([slower] if slower else [])))


def _outside(plan: Plan, domains: Mapping[str, Values], asked: Collection[str]) -> Iterator[str]:
    """Which keys of the specification keep a plan out of the space; what follows from those not."""
    off = [name for name, values in domains.items() if getattr(plan, name) not in values]
    for name in [name for name in off if name in asked] or off:
        value, values = getattr(plan, name), domains[name]
        searched = ", ".join(map(_value, values))
        yield f"space.{name} does not search {_value(value)}: it has {searched}"


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _nowhere() -> str:
    return (
        "each of its values is searched, and not all of them together: what a knob offers depends"
        " on others (docs/knobs.md), and space can name the values"
    )


def _dominator(plan: Plan, ground: ForecastContext) -> Record | None:
    """The first trial that ran out of memory and needed no more."""
    table = PlanTable.of([plan])
    return next(
        (
            record
            for record in ground.records
            if isinstance(record.outcome, OutOfMemory) and len(dominated_rows(table, record))
        ),
        None,
    )


def _memory(told: Expected, ground: ForecastContext) -> str:
    """Why a plan is not expected to fit; empty if it is."""
    limit, line = ground.question.limit_bytes, ground.question.line_bytes
    peak = told.peak_bytes
    words = f"its peak is forecast at {gib(peak.value)} GiB ({gib(peak.low)} to {gib(peak.high)})"
    fits = f"fits with {100 * told.fits:.0f} %"
    if told.host_bytes > ground.question.host_limit_bytes:
        return f"it would offload {gib(told.host_bytes)} GiB to the host, more than a rank's share"
    if peak.value > limit:
        return f"{words}, above the limit of {gib(limit)} GiB: {fits}"
    if peak.value > line:
        return f"{words}, above the line of {gib(line)} GiB that the headroom leaves: {fits}"
    if told.fits < SURE_TO_FIT:
        return f"{words}, too near to the limit of {gib(limit)} GiB: {fits}"
    return ""


def _slower(ratio: Estimate, best: Record | None) -> str:
    assert best is not None
    words = f"{ratio.value:.2f} x ({ratio.low:.2f} to {ratio.high:.2f})"
    sure = "" if ratio.high < 1 or ratio.value >= 1 else ", which may be as fast"
    return f"its speed is forecast at {words} that of trial {best.number}{sure}"


def _over(told: Expected | None, best: Record | None) -> Estimate | None:
    if told is None or best is None or not isinstance(best.outcome, Measured):
        return None
    return quotient(told.samples_per_second, best.outcome.samples_per_second)


def _end(ground: ForecastContext) -> str:
    """How the sweep ended, which other plans would have gone on with."""
    trials, ended = plural(len(ground.state.records), "trial"), ground.state.ended
    if ended is None:
        return f"nothing says that the sweep has ended; so far it has {trials}"
    return f"the sweep ended before it was its turn, after {trials}: {ended.reason}"
