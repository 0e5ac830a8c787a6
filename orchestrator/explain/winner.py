"""Explanation of the best plan, compared to the baseline and the runners-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.objective import quotient, ranked, record_of, speedup
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext
from orchestrator.explain.effects import (
    Change,
    KnobEffect,
    changes,
    knob_effects,
)
from search_spaces.knobs.registry import lossy_knobs
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured, Outcome

RUNNERS_UP = 3

Seconds = tuple[tuple[str, float, float], ...]  # name of a phase or term, winner's, other's


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """A plan that the best plan is compared to.

    Attributes:
        outcome: How its trial ended; None if it was not tried.
        ratio: Speed of the best plan over that of this plan, forecast if `measured` is false.
        equal: True if both are statistically equal.
        phases: Measured seconds of a step.
        terms: Forecast seconds of a step.
    """

    role: Literal["baseline", "runner-up"]
    trial: int | None
    plan: Plan
    lossy: tuple[str, ...]  # knobs that change the numerics
    outcome: Outcome | None
    ratio: Estimate | None
    measured: bool
    equal: bool
    peak_bytes: float | None
    changes: tuple[Change, ...]
    knob_effects: tuple[KnobEffect, ...]
    phases: Seconds
    terms: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class BestExplanation:
    """The best plan of a study, and its competitors."""

    study: str
    trial: Record
    competitors: tuple[Competitor, ...]
    note: str = ""  # reason if nothing could be forecast


def explain_best(
    state: SweepState, best: Record, context: ForecastContext | None, note: str = ""
) -> BestExplanation:
    """Compares the best plan to its competitors; without a context, by measurements alone."""
    competitors = tuple(_competitors(state, best, context))
    return BestExplanation(study=state.study, trial=best, competitors=competitors, note=note)


def _competitors(
    state: SweepState, best: Record, context: ForecastContext | None
) -> Iterator[Competitor]:
    baseline = state.space.baseline
    if best.plan != baseline:
        yield _competitor("baseline", state, best, baseline, context)
    others = [
        record.plan
        for record in ranked(state.by_plan, state.objective)
        if record.plan not in (best.plan, baseline)
    ]
    for plan in others[:RUNNERS_UP]:
        yield _competitor("runner-up", state, best, plan, context)


def _competitor(
    role: Literal["baseline", "runner-up"],
    state: SweepState,
    best: Record,
    plan: Plan,
    context: ForecastContext | None,
) -> Competitor:
    tried = record_of(state.by_plan, plan)
    ratio, peak = speedup(best, tried), None
    if tried is not None and isinstance(tried.outcome, Measured):
        peak = float(tried.outcome.memory.peak_bytes)
    terms: Seconds = ()
    measured = ratio is not None
    best_row = None if context is None else context.expected(best.plan)
    row = None if context is None else context.expected(plan)
    if best_row is not None and row is not None:
        seconds = zip(best_row.seconds, row.seconds, strict=True)
        terms = tuple((name, own, other) for (name, own), (_, other) in seconds if own or other)
        if not measured:
            forecast = row.forecast
            ratio = quotient(best_row.forecast.samples_per_second, forecast.samples_per_second)
            peak = peak or forecast.peak_bytes.value
    return Competitor(
        role=role,
        trial=None if tried is None else tried.number,
        plan=plan,
        lossy=lossy_knobs(plan, state.spec),
        outcome=None if tried is None else tried.outcome,
        ratio=ratio,
        measured=measured,
        equal=any(record.plan == plan for record in state.ties),
        peak_bytes=peak,
        changes=changes(best.plan, plan),
        knob_effects=() if context is None else knob_effects(best, plan, context),
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
