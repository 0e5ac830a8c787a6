"""Explanation of a plan that was not tried."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.core.objective import quotient, record_of
from orchestrator.core.records import Record
from orchestrator.explain.context import ForecastContext, complete_plan
from orchestrator.explain.effects import Change, changes
from orchestrator.forecast.table import ForecastRow
from orchestrator.search.base import dominated_rows
from search_spaces.knobs.registry import KNOBS, lossy_knobs
from search_spaces.knobs.search_defaults import Values
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.rules.registry import refusal
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueNotSearched:
    """The specification does not search a value of the plan, only others of this knob."""

    knob: str
    value: Any
    searched: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UntriedExplanation:
    """A plan, and why it was not tried.

    Attributes:
        like: Trial of the plan that supplied the knobs not named. None if it was not tried.
        rule: Name of the rule that forbids the plan, which `detail` is said by.
        trial: The plan's own trial, or one that ran out of memory with no more need of it.
        not_searched: Values of the plan that the specification does not search.
        limit_bytes: Memory limit of a device.
        line_bytes: Memory of a device that plans may use: the limit minus the headroom.
        node_host_bytes: Memory of a node's host.
        ratio: Forecast speed over that of the best plan.
    """

    study: str
    plan: Plan | None  # None if no plan has these knobs
    lossy: tuple[str, ...]  # knobs that change the numerics
    like: int | None
    changes: tuple[Change, ...]
    verdict: Verdict
    rule: str = ""
    detail: str = ""
    trial: int | None = None
    not_searched: tuple[ValueNotSearched, ...] = ()
    limit_bytes: int
    line_bytes: float
    node_host_bytes: int
    expected: ForecastRow | None = None
    ratio: Estimate | None = None


def explain_untried(knobs: Mapping[str, Any], context: ForecastContext) -> UntriedExplanation:
    """Explains why a plan was not tried.

    Args:
        knobs: Values of some knobs; the others are those of the best plan, or else the baseline.
        context: The study and its forecasts.
    """
    state, searched = context.state, context.forecasts.table.values
    template = state.space.baseline if state.best is None else state.best.plan
    domains = {knob.name: searched[knob.name] for knob in KNOBS}
    completed = complete_plan(knobs, template, domains, state.spec.train.global_batch)
    tried = record_of(state.records, template)
    known: dict[str, Any] = {
        "study": state.study,
        "like": None if tried is None else tried.number,
        "limit_bytes": context.forecasts.request.limit_bytes,
        "line_bytes": context.forecasts.request.line_bytes,
        "node_host_bytes": context.forecasts.request.device.node_host_bytes,
    }
    if isinstance(completed, Refused):
        return UntriedExplanation(plan=None, lossy=(), changes=(), **known, **_ruled_out(completed))
    expected = context.expected(completed)
    return UntriedExplanation(
        plan=completed,
        lossy=lossy_knobs(completed, state.spec),
        changes=changes(template, completed),
        expected=expected,
        **known,
        **_cause(completed, expected, domains, knobs, context),
    )


def _ruled_out(refused: Refused) -> dict[str, Any]:
    return {"verdict": "ruled_out", "rule": refused.rule, "detail": refused.detail}


def _cause(
    plan: Plan,
    expected: ForecastRow | None,
    domains: Mapping[str, Values],
    named: Collection[str],
    context: ForecastContext,
) -> dict[str, Any]:
    """Returns the verdict and what it follows from, as fields of the explanation."""
    ratio = _speed_ratio(expected, context.state.best)
    if (tried := record_of(context.state.records, plan)) is not None:
        return {"verdict": "tried", "trial": tried.number, "ratio": ratio}
    outside = tuple(_values_outside(plan, domains, named))
    if (refused := refusal(plan, context.rule_context)) is not None:
        return _ruled_out(refused) | {"not_searched": outside}
    assert expected is not None  # it is legal
    if not len(context.forecasts.table.rows_of(plan)):
        return {"verdict": "not_in_the_space", "not_searched": outside, "ratio": ratio}
    if (oom := _dominator(plan, context)) is not None:
        return {"verdict": "dominated", "trial": oom.number, "ratio": ratio}
    verdict: Verdict = "not_reached"  # of a plan that the search could have proposed
    if not expected.keeps_headroom:
        verdict = "forecast_not_to_fit"
    elif ratio is not None and ratio.value < 1:
        verdict = "forecast_to_be_slower"
    return {"verdict": verdict, "ratio": ratio}


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


def _speed_ratio(expected: ForecastRow | None, best: Record | None) -> Estimate | None:
    if expected is None or best is None or not isinstance(best.outcome, Measured):
        return None
    return quotient(expected.forecast.samples_per_second, best.outcome.samples_per_second)
