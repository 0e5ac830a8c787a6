"""What happened to one trial, and why it is not the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.core.objective import ranked
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, times, without_accelerator
from orchestrator.explain.effects import Change, changes
from orchestrator.forecast.table import expected
from orchestrator.report.format import number
from orchestrator.report.labels import lossy_words, outcome_words, validation_words
from orchestrator.report.sweep_tables import speedup
from orchestrator.search.base import dominated_rows
from orchestrator.workspace import snapshot_of
from search_spaces.costs.calibration import SURE, probability_below
from search_spaces.errors import StudyError
from search_spaces.plan import Plan
from search_spaces.plan_table import neighbours
from search_spaces.trial import Crashed, Estimate, Measured, OutOfMemory, PlanForecast, Record

LIKELY = 0.5  # probability to fit from which on a change is told


@dataclass(frozen=True, slots=True, kw_only=True)
class OomFix:
    """A plan that differs in one knob and fits, or is likely to.

    `trial` is that in which it was measured to fit, with `measured` and the peak that was
    held; None where `peak_bytes` and `fits` are forecast. `keeps` says whether the headroom
    stays free too.
    """

    change: Change
    plan: Plan
    trial: int | None
    samples_per_second: Estimate  # as forecast
    measured: Estimate | None
    peak_bytes: float
    fits: float
    keeps: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What a plan wanted when it ran out of memory, and what would have helped.

    `held_bytes` is the forecast by category, of which the sum is `forecast`; `factor` is what the
    trial wanted over that, at least 1: forecasts of plans beside it are raised by it. Of `tried`
    single changes that are legal, `ran_out` ran out of memory themselves, or need no less than
    one that did; `remedies` are those that fit, the fastest first by forecast.
    """

    wanted_bytes: int | None
    limit_bytes: int
    line_bytes: float
    forecast: Estimate | None
    held_bytes: tuple[tuple[str, float], ...]
    factor: float
    tried: int
    ran_out: int
    remedies: tuple[OomFix, ...]


def shortage(record: Record, outcome: OutOfMemory, ground: ForecastContext) -> Shortage:
    """Why a trial ran out of its device's memory, and which changes of one knob would have fit."""
    limit = outcome.limit_bytes or ground.question.limit_bytes
    told = ground.expected(record.plan)
    wanted = outcome.wanted_bytes
    peak = None if told is None else told.peak_bytes.value
    factor = max(wanted / peak, 1.0) if wanted and peak else 1.0
    table = ground.sized.table
    near = {found.row: found.knob for found in neighbours(record.plan, table)}
    lost = {int(row) for one in ground.records for row in dominated_rows(table, one)}
    found = [
        remedy
        for row, knob in near.items()
        if (remedy := _remedy(record.plan, knob, row, ground, limit, factor)) is not None
        if row not in lost or remedy.trial is not None
    ]
    return Shortage(
        wanted_bytes=wanted,
        limit_bytes=limit,
        line_bytes=limit * (1 - ground.state.spec.objective.headroom),
        forecast=None if told is None else told.peak_bytes,
        held_bytes=() if told is None else told.held_bytes,
        factor=factor,
        tried=len(near),
        ran_out=len(near.keys() & lost),
        remedies=tuple(_best_of_each(found)),
    )


def _remedy(
    plan: Plan, knob: str, row: int, ground: ForecastContext, limit: int, factor: float
) -> OomFix | None:
    """The plan in a row, if it was measured to fit or is likely to."""
    told = expected(ground.sized, row)
    change = Change(knob=knob, ours=getattr(plan, knob), theirs=getattr(told.plan, knob))
    line = limit * (1 - ground.state.spec.objective.headroom)
    tried = ground.record_of(told.plan)
    if tried is not None:
        if not isinstance(tried.outcome, Measured):
            return None
        peak = tried.outcome.memory.peak_bytes
        return OomFix(
            change=change,
            plan=told.plan,
            trial=tried.number,
            samples_per_second=told.samples_per_second,
            measured=tried.outcome.samples_per_second,
            peak_bytes=float(peak),
            fits=1.0,
            keeps=peak <= line,
        )
    raised = times(told.peak_bytes, factor)
    fits = _fits(raised, limit)
    hosted = bool(ground.sized.hosted[row])
    if fits < LIKELY or not hosted:
        return None
    return OomFix(
        change=change,
        plan=told.plan,
        trial=None,
        samples_per_second=told.samples_per_second,
        measured=None,
        peak_bytes=raised.value,
        fits=fits,
        keeps=raised.value <= line,
    )


def _fits(peak: Estimate, limit: float) -> float:
    deviation = np.array([np.log(peak.high / peak.value) / SURE])
    return float(probability_below(np.array([limit]), np.array([peak.value]), deviation)[0])


def _best_of_each(found: list[OomFix]) -> list[OomFix]:
    """Of each value of a knob one, measured before forecast; the fastest first by forecast."""
    best = dict[tuple[str, object], OomFix]()
    for remedy in sorted(found, key=lambda one: (one.trial is None, -_rate(one))):
        best.setdefault((remedy.change.knob, remedy.change.theirs), remedy)
    return sorted(best.values(), key=lambda one: -_rate(one))


def _rate(remedy: OomFix) -> float:
    return remedy.samples_per_second.value


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialExplanation:
    """A trial of a study: why it was run, how it ended, and what that means.

    `place` is its rank among the feasible plans, 1 the best, None if it is not feasible; `ratio`
    its speed over the winner's, and `changes` are the knobs in which they differ. `trace` is the
    traceback of a crash.
    """

    study: str
    trial: int
    plan: Plan
    lossy: str  # which knobs change the numerics, empty if none does
    why: str
    kind: str
    outcome: str
    forecast: PlanForecast | None  # as it was before the trial
    reasons: tuple[str, ...]
    place: int | None
    ratio: Estimate | None
    changes: tuple[Change, ...]
    winner: int | None
    shortage: Shortage | None
    trace: str
    snapshot: str | None  # torch's, of a GPU's memory when it ran out; a pickle
    note: str = ""  # why nothing could be forecast


def trial_named(state: SweepState, number: int) -> Record:
    """The last record of that number.

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
    state: SweepState, record: Record, ground: ForecastContext | None, note: str = ""
) -> TrialExplanation:
    """What happened to a trial; without a ground nothing is told of what would have fit."""
    outcome, best = record.outcome, state.best
    order = [one.number for one in ranked(state.records, state.goal)]
    short = None
    if isinstance(outcome, OutOfMemory) and outcome.where == "device" and ground is not None:
        plain = replace(record, plan=without_accelerator(record.plan))
        short = shortage(plain, outcome, ground)
    ran_out = isinstance(outcome, OutOfMemory)
    kept = snapshot_of(state.spec, state.study, record.number) if ran_out else None
    return TrialExplanation(
        study=state.study,
        trial=record.number,
        plan=record.plan,
        lossy=lossy_words(record.plan, state.spec),
        why=record.why,
        kind=outcome.kind,
        outcome=outcome_words(outcome),
        forecast=record.forecast,
        reasons=tuple(_reasons(state, record)),
        place=order.index(record.number) + 1 if record.number in order else None,
        ratio=None if best is None or best == record else speedup(record, best),
        changes=() if best is None else changes(best.plan, record.plan),
        winner=None if best is None else best.number,
        shortage=short,
        snapshot=None if kept is None else str(kept),
        trace=outcome.trace if isinstance(outcome, Crashed) else "",
        note=note,
    )


def _reasons(state: SweepState, record: Record) -> Iterator[str]:
    """Why it is the answer, or is not."""
    best, outcome = state.best, record.outcome
    for validation in state.validations:
        if validation.number == record.number:
            yield f"its validation {validation_words(validation, state)}"
    if best is not None and best.number == record.number:
        yield "it is the answer"
        return
    if not isinstance(outcome, Measured):
        yield from _unmeasured(outcome)
        return
    yield from state.goal.shortfalls(record)
    if best is None or not state.goal.feasible(record) or record.number in state.failed_validations:
        return
    if record in state.equals:
        yield f"it is statistically equal to trial {best.number}, {_preferred(state, best)}"
        return
    ours, theirs = state.goal.value(record), state.goal.value(best)
    if ours is not None and theirs is not None:
        yield (
            f"it reaches {number(ours.value)} ({number(ours.low)} to {number(ours.high)}) where"
            f" trial {best.number} reaches {number(theirs.value)} ({number(theirs.low)} to"
            f" {number(theirs.high)}): the intervals lie apart"
        )


def _preferred(state: SweepState, best: Record) -> str:
    validated = state.validated is not None and state.validated.number == best.number
    return (
        "which is the one that was validated" if validated else "which was measured as the fastest"
    )


def _unmeasured(outcome: object) -> Iterator[str]:
    if isinstance(outcome, OutOfMemory) and outcome.where == "host":
        yield (
            "the host's memory ran out, and not the device's: what loader processes, offloaded"
            " state and other work hold there is not forecast"
        )
    elif isinstance(outcome, OutOfMemory) and outcome.wanted_bytes is None:
        yield "its allocator did not say how much was wanted"
