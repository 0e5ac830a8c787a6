"""Which single changes would have made a plan fit that ran out of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orchestrator.core.hopeless import hopeless_rows
from orchestrator.explaining.changes import Change
from orchestrator.explaining.ground import Ground, times
from orchestrator.planning.expected import expected
from search_spaces.estimate import Estimate
from search_spaces.forecast.scales import SURE, probability_below
from search_spaces.neighbours import neighbours
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.plan import Plan
from search_spaces.record import Record

LIKELY = 0.5  # probability to fit from which on a change is told


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A plan that differs in one knob and fits, or is likely to.

    `trial` is that in which it was measured to fit, with `measured` and the peak that was
    held; None where `peak_bytes` and `fits` are forecast. `keeps` says whether the head-room
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
    remedies: tuple[Remedy, ...]


def shortage(record: Record, outcome: OutOfMemory, ground: Ground) -> Shortage:
    """Why a trial ran out of its device's memory, and which changes of one knob would have fit."""
    limit = outcome.limit_bytes or ground.question.limit_bytes
    told = ground.expected(record.plan)
    wanted = outcome.wanted_bytes
    peak = None if told is None else told.peak_bytes.value
    factor = max(wanted / peak, 1.0) if wanted and peak else 1.0
    table = ground.sized.table
    near = {found.row: found.knob for found in neighbours(record.plan, table)}
    lost = {int(row) for one in ground.records for row in hopeless_rows(table, one)}
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
    plan: Plan, knob: str, row: int, ground: Ground, limit: int, factor: float
) -> Remedy | None:
    """The plan in a row, if it was measured to fit or is likely to."""
    told = expected(ground.sized, row)
    change = Change(knob=knob, ours=getattr(plan, knob), theirs=getattr(told.plan, knob))
    line = limit * (1 - ground.state.spec.objective.headroom)
    tried = ground.record_of(told.plan)
    if tried is not None:
        if not isinstance(tried.outcome, Measured):
            return None
        peak = tried.outcome.memory.peak_bytes
        return Remedy(
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
    return Remedy(
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


def _best_of_each(found: list[Remedy]) -> list[Remedy]:
    """Of each value of a knob one, measured before forecast; the fastest first by forecast."""
    best = dict[tuple[str, object], Remedy]()
    for remedy in sorted(found, key=lambda one: (one.trial is None, -_rate(one))):
        best.setdefault((remedy.change.knob, remedy.change.theirs), remedy)
    return sorted(best.values(), key=lambda one: -_rate(one))


def _rate(remedy: Remedy) -> float:
    return remedy.samples_per_second.value
