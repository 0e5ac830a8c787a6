"""The data of a sweep's page, before any of it is drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from orchestrator.core.objective import within_headroom
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, forecast_context, without_accelerator
from orchestrator.explain.effects import KnobEffect, single_changes
from orchestrator.report.labels import KIND_WORDS, check_of
from orchestrator.report.sweep_tables import baseline_record, speedup
from search_spaces.errors import UserError
from search_spaces.trial import Estimate, Measured, MemoryReading, Record


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportData:
    """A sweep, and what its plans are expected to take: where `ground` is None, `note` says why."""

    state: SweepState
    ground: ForecastContext | None
    note: str = ""

    @property
    def best(self) -> Record | None:
        """The answer."""
        return self.state.best

    @property
    def baseline(self) -> Record | None:
        """The trial of the plan that one would start with, where it was measured."""
        record = baseline_record(self.state)
        return record if record is not None and isinstance(record.outcome, Measured) else None


def report_data(state: SweepState) -> ReportData:
    """A sweep with forecasts, on the nodes of its answer; without them where none can be made."""
    plan = (state.best or state.records[0]).plan
    try:
        return ReportData(state=state, ground=forecast_context(state, plan.accelerator))
    except UserError as error:
        why = " ".join(str(error).split())
        return ReportData(
            state=state, ground=None, note=f"This page tells what was measured: {why}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedComparison:
    """The answer against another measured plan: `faster` and `saved` are shares, 0.25 a quarter.

    `saved` is of the other plan's peak; negative where the answer takes more. None where the other
    one held nothing that was seen.
    """

    other: Record
    role: str
    faster: Estimate | None
    saved: float | None


def comparisons(told: ReportData) -> Iterator[SpeedComparison]:
    """The answer against the plan that one would start with, and against its equals."""
    best = told.best
    if best is None:
        return
    if told.baseline is not None and told.baseline.number != best.number:
        yield _against(best, told.baseline, "what one would start with")
    for record in told.state.equals:
        if record.number != best.number:
            yield _against(best, record, "statistically equal")


def _against(best: Record, other: Record, role: str) -> SpeedComparison:
    ratio = speedup(best, other)
    ours, theirs = memory_of(best).peak_bytes, memory_of(other).peak_bytes
    faster = None
    if ratio is not None:
        faster = Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)
    return SpeedComparison(
        other=other, role=role, faster=faster, saved=1 - ours / theirs if theirs else None
    )


def memory_of(record: Record) -> MemoryReading:
    """The memory of a measured trial."""
    assert isinstance(record.outcome, Measured)
    return record.outcome.memory


def ablation(told: ReportData) -> tuple[KnobEffect, ...]:
    """What becomes of the answer where one knob alone is changed; nothing without an answer."""
    if told.best is None:
        return ()
    kind = told.best.plan.accelerator
    records = [
        replace(record, plan=without_accelerator(record.plan))
        for record in told.state.records
        if record.plan.accelerator == kind
    ]
    return single_changes(told.best, records, told.ground)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """So many combinations of the knobs' values, what became of them, and why."""

    plans: int
    what: str
    why: str = ""


def accounting(told: ReportData) -> tuple[Count, ...]:
    """The whole space: each combination counts once, in one of the rows.

    Without a ground nothing is known of what was not tried.
    """
    found = [*_tried(told.state)]
    if told.ground is not None:
        found += _untried(told.ground)
        found += [
            Count(plans=plans, what="ruled out", why=rule.replace("_", " "))
            for rule, plans in sorted(told.ground.sized.ruled_out, key=lambda entry: -entry[1])
        ]
    return tuple(found)


def _tried(state: SweepState) -> Iterator[Count]:
    latest = {record.plan: record for record in state.records}  # of a plan, the last one counts
    ends = Counter(_ending(record, state) for record in latest.values())
    for (what, why), plans in sorted(ends.items(), key=lambda entry: (entry[0][0], -entry[1])):
        yield Count(plans=plans, what=what, why=why)


def _ending(record: Record, state: SweepState) -> tuple[str, str]:
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return "tried", KIND_WORDS[outcome.kind]
    if not within_headroom(outcome.memory, state.spec.objective.headroom):
        return "measured", "over the line"
    return "measured", "" if state.goal.feasible(record) else "less than asked"


def _untried(ground: ForecastContext) -> Iterator[Count]:
    sized = ground.sized
    free = np.ones(len(sized.table), dtype=bool)
    for record in ground.records:
        free[sized.table.rows_of(record.plan)] = False
    fits = int((free & sized.keeps).sum())
    yield Count(plans=fits, what="not tried", why="forecast to fit")
    rest = int(free.sum()) - fits
    yield Count(
        plans=rest, what="not tried", why="forecast not to keep the headroom, or not surely"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurves:
    """Losses of the answer's validation and of the reference's trial, optimizer step by step."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    reference: int
    tolerance: float
    apart: float


def loss_curves(state: SweepState) -> LossCurves | None:
    """Losses of the validation and its reference; None where one of them is missing."""
    validation = state.validated
    check = None if validation is None else check_of(validation, state)
    if validation is None or check is None or not isinstance(validation.outcome, Measured):
        return None
    reference = next(record for record in state.records if record.number == check.reference)
    assert isinstance(reference.outcome, Measured)
    return LossCurves(
        ours=validation.outcome.losses[: check.steps],
        theirs=reference.outcome.losses[: check.steps],
        reference=check.reference,
        tolerance=check.tolerance,
        apart=check.apart,
    )
