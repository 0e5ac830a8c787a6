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
    phase_seconds,
    term_seconds,
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
    """The best plan of a study, and its competitors. Memory is that of the fullest rank."""

    study: str
    trial: Record
    peak_bytes: int
    limit_bytes: int
    usable_bytes: float  # the limit minus the headroom
    competitors: tuple[Competitor, ...]
    note: str = ""  # reason if nothing could be forecast


def explain_best(
    state: SweepState, best: Record, context: ForecastContext | None, note: str = ""
) -> BestExplanation:
    """Compares the best plan to its competitors; without a context, by measurements alone."""
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    memory = outcome.memory
    headroom = state.spec.objective.headroom
    return BestExplanation(
        study=state.study,
        trial=best,
        peak_bytes=memory.peak_bytes,
        limit_bytes=memory.limit_bytes,
        usable_bytes=memory.limit_bytes * (1 - headroom),
        competitors=tuple(_competitors(state, best, context)),
        note=note,
    )


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
    measured = ratio is not None
    if context is not None and not measured:
        expected_best = context.expected(best.plan)
        expected = context.expected(plan)
        if expected_best is not None and expected is not None:
            forecast = expected.forecast
            ratio = quotient(expected_best.forecast.samples_per_second, forecast.samples_per_second)
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
        phases=() if tried is None else tuple(phase_seconds(best, tried)),
        terms=() if context is None else tuple(term_seconds(best.plan, plan, context)),
    )
