"""Differences between two plans of a study, and the effect of each knob on its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.core.objective import quotient, record_of
from orchestrator.core.records import Record
from orchestrator.explain.context import ForecastContext
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable, differing_knobs, neighbours
from search_spaces.trial import Estimate, Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A knob in which two plans differ; knobs that follow from another one are left out."""

    knob: str
    value: Any
    other_value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobEffect:
    """The effect of one knob: a plan compared to the plan in which only this knob differs.

    Attributes:
        ratio: Speed of the plan over that of the other plan.
        peak_bytes: Peak of the plan minus that of the other plan.
        trial: The other plan's trial if it was tried. None if both are forecast, or if no legal
            plan differs in this knob alone; then `ratio` is None too.
    """

    change: Change
    ratio: Estimate | None = None
    peak_bytes: float | None = None
    trial: int | None = None
    outcome_kind: str | None = None  # of the other plan's trial, if it measured nothing
    keeps_headroom: bool | None = None  # whether the forecast of the other plan does


def changes(plan: Plan, other: Plan) -> tuple[Change, ...]:
    """Returns the knobs in which two plans differ."""
    return tuple(
        Change(knob=name, value=getattr(plan, name), other_value=getattr(other, name))
        for name in differing_knobs(plan, other)
    )


def _preference(effect: KnobEffect) -> tuple[bool, bool, float]:
    ratio = float("inf") if effect.ratio is None else effect.ratio.value
    return effect.trial is None, effect.ratio is None, ratio


def single_changes(
    record: Record, records: Sequence[Record], context: ForecastContext | None
) -> tuple[KnobEffect, ...]:
    """Returns the effects of all changes of one knob of a measured plan, each value once.

    Args:
        record: The record of the plan.
        records: The study's records: the first of each plan, with its pooled speed.
        context: Forecasts of plans that were not measured; None leaves those plans out.
    """
    plan = record.plan
    tables = [PlanTable.of(trial.plan for trial in records)]
    if context is not None:
        tables.append(context.forecasts.table)
    near_plans: dict[tuple[str, Any], list[Plan]] = {}
    for table in tables:
        for row, knob in neighbours(plan, table).items():
            near_plan = table.plan(row)
            near_plans.setdefault((knob, getattr(near_plan, knob)), []).append(near_plan)
    effects = []
    for (knob, value), others in near_plans.items():
        change = Change(knob=knob, value=getattr(plan, knob), other_value=value)
        candidates = [
            _effect(change, record, other, records, context) for other in dict.fromkeys(others)
        ]
        effects.append(min(candidates, key=_preference))
    return tuple(effects)


def _effect(
    change: Change,
    record: Record,
    other: Plan,
    records: Sequence[Record],
    context: ForecastContext | None,
) -> KnobEffect:
    tried = record_of(records, other)
    outcome = record.outcome
    if tried is not None and isinstance(outcome, Measured):
        other_outcome = tried.outcome
        if not isinstance(other_outcome, Measured):
            return KnobEffect(change=change, trial=tried.number, outcome_kind=other_outcome.kind)
        return KnobEffect(
            change=change,
            ratio=quotient(outcome.samples_per_second, other_outcome.samples_per_second),
            peak_bytes=float(outcome.memory.peak_bytes - other_outcome.memory.peak_bytes),
            trial=tried.number,
        )
    expected = None if context is None else context.expected(record.plan)
    other_expected = None if context is None else context.expected(other)
    if expected is None or other_expected is None:
        return KnobEffect(change=change)
    forecast, other_forecast = expected.forecast, other_expected.forecast
    return KnobEffect(
        change=change,
        ratio=quotient(forecast.samples_per_second, other_forecast.samples_per_second),
        peak_bytes=forecast.peak_bytes.value - other_forecast.peak_bytes.value,
        keeps_headroom=other_expected.keeps_headroom,
    )
