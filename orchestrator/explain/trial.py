"""Explanation of one trial: its outcome, its rank, and fixes if it ran out of memory."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from orchestrator.core.objective import ranked, record_of, speedup
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.explain.effects import Change, changes
from orchestrator.search.base import dominated_rows
from search_spaces.costs.calibration import Z_95, probability_below
from search_spaces.errors import StudyError
from search_spaces.knobs.registry import lossy_knobs
from search_spaces.plan import Plan
from search_spaces.plan_table import neighbours
from search_spaces.trial import Estimate, Measured, OutOfMemory

Standing = Literal[
    "best",
    "tied",  # statistically equal to the best
    "worse",
    "infeasible",  # measured, and violates a constraint
    "validation_failed",
    "not_measured",
]
LIKELY = 0.5  # least probability to fit of a change that is reported


@dataclass(frozen=True, slots=True, kw_only=True)
class OomFix:
    """A plan that differs in one knob and fits, or is likely to fit.

    Attributes:
        trial: The trial in which the plan fit. None if `peak_bytes` and `fits` are forecasts.
        fits: Probability to fit.
        keeps_headroom: True if the plan keeps the headroom too.
    """

    change: Change
    plan: Plan
    trial: int | None
    samples_per_second: Estimate  # as forecast
    measured: Estimate | None
    peak_bytes: float
    fits: float
    keeps_headroom: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """The memory shortage of a trial, and changes of one knob that fix it.

    Attributes:
        usable_bytes: Memory limit minus headroom.
        forecast: Forecast peak.
        factor: Bytes that the trial requested over the forecast peak, at least 1. Forecasts of
            the changed plans are multiplied by it.
        tried: Number of legal plans that differ in one knob.
        ran_out: Number of those that ran out of memory, or need no less than a plan that did.
        fixes: The changes that fit, fastest first by forecast.
    """

    wanted_bytes: int | None
    limit_bytes: int
    usable_bytes: float
    forecast: Estimate | None
    factor: float
    tried: int
    ran_out: int
    fixes: tuple[OomFix, ...]


def shortage(record: Record, outcome: OutOfMemory, context: ForecastContext) -> Shortage:
    """Explains why a trial ran out of device memory, and which changes of one knob fit."""
    limit = outcome.limit_bytes or context.forecasts.request.limit_bytes
    expected = context.expected(record.plan)
    wanted = outcome.wanted_bytes
    peak = None if expected is None else expected.forecast.peak_bytes
    factor = max(wanted / peak.value, 1.0) if wanted and peak else 1.0
    table = context.forecasts.table
    near = neighbours(record.plan, table)
    dominated = {
        int(row) for trial in context.state.records for row in dominated_rows(table, trial)
    }
    fixes = [
        fix
        for row, knob in near.items()
        if (fix := _oom_fix(record.plan, knob, row, context, limit, factor)) is not None
        if row not in dominated or fix.trial is not None
    ]
    return Shortage(
        wanted_bytes=wanted,
        limit_bytes=limit,
        usable_bytes=context.state.objective.usable_bytes(limit),
        forecast=peak,
        factor=factor,
        tried=len(near),
        ran_out=len(near.keys() & dominated),
        fixes=_best_per_value(fixes),
    )


def _oom_fix(
    plan: Plan, knob: str, row: int, context: ForecastContext, limit: int, factor: float
) -> OomFix | None:
    """Returns the plan in a row if it was measured to fit or is likely to fit."""
    expected = context.forecasts.row(row)
    other, speed = expected.plan, expected.forecast.samples_per_second
    change = Change(knob=knob, value=getattr(plan, knob), other_value=getattr(other, knob))
    line = context.state.objective.usable_bytes(limit)
    tried, measured = record_of(context.state.records, other), None
    raised_peak = expected.forecast.peak_bytes.times(factor)
    peak, fits = raised_peak.value, _fits(raised_peak, limit)
    if tried is not None:
        if not isinstance(tried.outcome, Measured):
            return None
        peak, fits = float(tried.outcome.memory.peak_bytes), 1.0
        measured = tried.outcome.samples_per_second
    elif fits < LIKELY or not context.forecasts.hosted[row]:
        return None
    return OomFix(
        change=change,
        plan=other,
        trial=None if tried is None else tried.number,
        samples_per_second=speed,
        measured=measured,
        peak_bytes=peak,
        fits=fits,
        keeps_headroom=peak <= line,
    )


def _fits(peak: Estimate, limit: float) -> float:
    deviation = np.array([np.log(peak.high / peak.value) / Z_95])
    return float(probability_below(np.array([limit]), np.array([peak.value]), deviation)[0])


def _best_per_value(fixes: list[OomFix]) -> tuple[OomFix, ...]:
    best = dict[tuple[str, object], OomFix]()
    order = sorted(fixes, key=lambda fix: -fix.samples_per_second.value)
    for fix in sorted(order, key=lambda fix: fix.trial is None):  # measured ones are preferred
        best.setdefault((fix.change.knob, fix.change.other_value), fix)
    return tuple(fix for fix in order if fix in best.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExplanation:
    """A trial of a study: how it ended, and why it is or is not the best.

    Attributes:
        trial: Its record, with the reason for trying it.
        lossy: Knobs that change the numerics.
        standing: Where it stands relative to the best trial.
        rank: Rank among feasible plans, 1 is the best. None if the plan is not feasible.
        best: Record of the best trial; None if no plan is feasible.
        ratio: Speed over that of the best plan.
        changes: Knobs in which it differs from the best plan.
        note: Reason if nothing could be forecast; empty if it could.
        named_by_knobs: A plan was asked for by its knobs, and this is its trial.
    """

    study: str
    trial: Record
    lossy: tuple[str, ...]
    standing: Standing
    rank: int | None
    best: Record | None
    ratio: Estimate | None
    changes: tuple[Change, ...]
    shortage: Shortage | None
    note: str = ""
    named_by_knobs: bool = False


def trial_named(state: SweepState, number: int) -> Record:
    """Returns the last record of a trial number.

    Raises:
        StudyError: If there is no such trial.
    """
    for record in reversed(state.records):
        if record.number == number:
            return record
    numbers = sorted(record.number for record in state.records)
    raise StudyError(
        f"study {state.study} has no finished trial {number}: its trials are {numbers[0]} to"
        f" {numbers[-1]}"
    )


def explain_trial(
    state: SweepState, record: Record, context: ForecastContext | None, note: str = ""
) -> TrialExplanation:
    """Explains a trial; without a forecast context, no fixes for a shortage are given."""
    outcome, best = record.outcome, state.best
    ranking = [trial.number for trial in ranked(state.by_plan, state.objective)]
    device_shortage = None
    if isinstance(outcome, OutOfMemory) and outcome.where == "device" and context is not None:
        device_shortage = shortage(record, outcome, context)
    return TrialExplanation(
        study=state.study,
        trial=record,
        lossy=lossy_knobs(record.plan, state.spec),
        standing=_standing(state, record),
        rank=ranking.index(record.number) + 1 if record.number in ranking else None,
        best=best,
        ratio=None if best is None or best.plan == record.plan else speedup(record, best),
        changes=() if best is None else changes(best.plan, record.plan),
        shortage=device_shortage,
        note=note,
    )


def _standing(state: SweepState, record: Record) -> Standing:
    if state.best is not None and state.best.number == record.number:
        return "best"
    if not isinstance(record.outcome, Measured):
        return "not_measured"
    if not state.objective.feasible(record):
        return "infeasible"
    if record.number in state.failed_validations:
        return "validation_failed"
    return "tied" if any(record.number == tie.number for tie in state.ties) else "worse"
