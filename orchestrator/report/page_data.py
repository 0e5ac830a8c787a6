"""Data behind the page of a sweep: comparisons, ablation and outcome counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from orchestrator.core.objective import memory_of, speedup, thrashes, within_headroom
from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, forecast_context
from orchestrator.explain.effects import KnobEffect, single_changes
from orchestrator.report.labels import KIND_WORDS
from orchestrator.report.sweep_tables import baseline_record
from search_spaces.errors import UserError
from search_spaces.trial import Estimate, Measured


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReportData:
    """A sweep with the forecasts of its plans; where `context` is None, `note` says why."""

    state: SweepState
    context: ForecastContext | None
    note: str = ""

    @property
    def best(self) -> Record | None:
        """The best trial."""
        return self.state.best

    @property
    def baseline(self) -> Record | None:
        """The trial of the baseline, or None if it was not measured."""
        record = baseline_record(self.state)
        return record if record is not None and isinstance(record.outcome, Measured) else None


def report_data(state: SweepState) -> ReportData:
    """Adds forecasts, or a note why there are none."""
    try:
        return ReportData(state=state, context=forecast_context(state))
    except UserError as error:
        reason = " ".join(str(error).split())
        note = f"This page shows measurements only, without forecasts: {reason}"
        return ReportData(state=state, context=None, note=note)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedComparison:
    """The best plan compared with another measured one.

    `faster` is the relative speed gain of the best plan, 0.25 for a quarter. `saved` is the memory
    that it saves, as a share of the other plan's peak: negative if the best plan needs more, None
    if the other peak is 0.
    """

    other: Record
    role: str
    faster: Estimate | None
    saved: float | None


def comparisons(data: ReportData) -> Iterator[SpeedComparison]:
    """Compares the best plan with the baseline and with the plans that equal it."""
    best = data.best
    if best is None:
        return
    if data.baseline is not None and data.baseline.number != best.number:
        yield _compare(best, data.baseline, "baseline")
    for record in data.state.ties:
        if record.number != best.number:
            yield _compare(best, record, "statistically equal")


def _compare(best: Record, other: Record, role: str) -> SpeedComparison:
    ratio = speedup(best, other)
    best_peak, other_peak = memory_of(best).peak_bytes, memory_of(other).peak_bytes
    faster = None
    if ratio is not None:
        faster = Estimate(value=ratio.value - 1, low=ratio.low - 1, high=ratio.high - 1)
    return SpeedComparison(
        other=other,
        role=role,
        faster=faster,
        saved=1 - best_peak / other_peak if other_peak else None,
    )


def ablation(data: ReportData) -> tuple[KnobEffect, ...]:
    """Returns the effect of each single-knob change to the best plan; empty if there is none."""
    if data.best is None:
        return ()
    return single_changes(data.best, data.state.records, data.context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number of knob combinations with their status and the reason for it."""

    plans: int
    what: str
    why: str = ""


def accounting(data: ReportData) -> tuple[Count, ...]:
    """Counts every combination of the space once, by status and reason.

    Without forecasts it covers the plans tried.
    """
    rows = [*_tried(data.state)]
    if data.context is not None:
        rows += _untried(data.context)
        rows += [
            Count(plans=plans, what="ruled out", why=rule.replace("_", " "))
            for rule, plans in sorted(data.context.sized.ruled_out, key=lambda entry: -entry[1])
        ]
    return tuple(rows)


def _tried(state: SweepState) -> Iterator[Count]:
    latest = {record.plan: record for record in state.records}  # a retry replaces the first trial
    by_status = Counter(_status(record, state) for record in latest.values())
    rows = sorted(by_status.items(), key=lambda entry: (entry[0][0], -entry[1]))
    for (status, reason), plans in rows:
        yield Count(plans=plans, what=status, why=reason)


def _status(record: Record, state: SweepState) -> tuple[str, str]:
    outcome = record.outcome
    if not isinstance(outcome, Measured):
        return "tried", KIND_WORDS[outcome.kind]
    if not within_headroom(outcome.memory, state.spec.objective.headroom):
        return "measured", "over usable memory"
    if thrashes(outcome.memory):
        return "measured", "thrashes"
    return "measured", "" if state.objective.feasible(record) else "below a minimum"


def _untried(context: ForecastContext) -> Iterator[Count]:
    forecasts = context.sized
    untried = np.ones(len(forecasts.table), dtype=bool)
    for record in context.state.records:
        untried[forecasts.table.rows_of(record.plan)] = False
    fitting = int((untried & forecasts.keeps_headroom).sum())
    yield Count(plans=fitting, what="not tried", why="forecast to fit")
    others = int(untried.sum()) - fitting
    yield Count(
        plans=others, what="not tried", why="forecast over usable memory, or not certain to fit"
    )
