"""Why the winner won: against the plan that one would start with, and against the runners-up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from orchestrator.core.objective import ranked, record_of
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, without_accelerator
from orchestrator.explain.effects import (
    Change,
    KnobEffect,
    changes,
    knob_effects,
    phases_saved,
    terms_saved,
)
from orchestrator.report.labels import lossy_words, outcome_words
from orchestrator.report.sweep_tables import quotient, speedup
from orchestrator.report.sweep_text import answer, lossy_sentence
from search_spaces.plan import Plan
from search_spaces.trial import Estimate, Measured, Record

RUNNERS_UP = 3

Seconds = tuple[tuple[str, float, float], ...]  # of what, the winner's, the other's


@dataclass(frozen=True, slots=True, kw_only=True)
class Competitor:
    """A plan that the winner is held against.

    `ratio` is the winner's speed over its own, forecast where `measured` is false; `equal` says
    that both are statistically equal. `phases` are measured seconds of a step, `terms` forecast
    ones. `outcome` is how its trial ended, empty if it was not tried.
    """

    role: Literal["baseline", "runner-up"]
    trial: int | None
    plan: Plan
    lossy: str  # which knobs change the numerics, empty if none does
    outcome: str
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
    """The answer of a study, and why it is that. Memory is that of the fullest rank."""

    study: str
    answer: str  # a sentence
    lossy: str  # a sentence, empty if the answer is lossless
    trial: int
    plan: Plan
    samples_per_second: Estimate
    peak_bytes: int
    limit_bytes: int
    line_bytes: float
    rivals: tuple[Competitor, ...]
    note: str = ""  # why nothing could be forecast


def explain_best(
    state: SweepState, best: Record, ground: ForecastContext | None, note: str = ""
) -> BestExplanation:
    """The winner beside its rivals; without a ground by measurements alone."""
    outcome = best.outcome
    assert isinstance(outcome, Measured)
    memory = outcome.memory
    headroom = state.spec.objective.headroom
    return BestExplanation(
        study=state.study,
        answer=answer(state),
        lossy=lossy_sentence(state),
        trial=best.number,
        plan=best.plan,
        samples_per_second=outcome.samples_per_second,
        peak_bytes=memory.peak_bytes,
        limit_bytes=memory.limit_bytes,
        line_bytes=memory.limit_bytes * (1 - headroom),
        rivals=tuple(_rivals(state, best, ground)),
        note=note,
    )


def _rivals(
    state: SweepState, best: Record, ground: ForecastContext | None
) -> Iterator[Competitor]:
    start = state.space.baseline
    if best.plan != start:
        yield _rival("baseline", state, best, start, ground)
    others = [
        record.plan
        for record in ranked(state.records, state.goal)
        if record.plan not in (best.plan, start)
    ]
    for plan in others[:RUNNERS_UP]:
        yield _rival("runner-up", state, best, plan, ground)


def _rival(
    role: Literal["baseline", "runner-up"],
    state: SweepState,
    best: Record,
    plan: Plan,
    ground: ForecastContext | None,
) -> Competitor:
    tried = record_of(state.records, plan)
    ratio, peak = speedup(best, tried), None
    if tried is not None and isinstance(tried.outcome, Measured):
        peak = float(tried.outcome.memory.peak_bytes)
    measured = ratio is not None
    here = None if plan.accelerator != best.plan.accelerator else ground
    if here is not None and not measured:
        ours, theirs = (
            here.expected(without_accelerator(best.plan)),
            here.expected(without_accelerator(plan)),
        )
        if ours is not None and theirs is not None:
            ratio = quotient(ours.samples_per_second, theirs.samples_per_second)
            peak = peak or theirs.peak_bytes.value
    return Competitor(
        role=role,
        trial=None if tried is None else tried.number,
        plan=plan,
        lossy=lossy_words(plan, state.spec),
        outcome="" if tried is None else outcome_words(tried.outcome),
        ratio=ratio,
        measured=measured,
        equal=any(record.plan == plan for record in state.equals),
        peak_bytes=peak,
        changes=changes(best.plan, plan),
        knob_effects=() if here is None else knob_effects(best, plan, here),
        phases=() if tried is None else tuple(phases_saved(best, tried)),
        terms=() if here is None else tuple(terms_saved(best.plan, plan, here)),
    )
