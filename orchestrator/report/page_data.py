"""Data behind the page of a sweep: and the effects of single knobs."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core.records import Record
from orchestrator.core.state import SweepState
from orchestrator.explain.context import ForecastContext, forecast_context
from orchestrator.explain.effects import KnobEffect, single_changes
from orchestrator.report.sweep_tables import baseline_record
from search_spaces.errors import UserError
from search_spaces.trial import Measured


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


def ablation(data: ReportData) -> tuple[KnobEffect, ...]:
    """Returns the effect of each single-knob change to the best plan; empty if there is none."""
    if data.best is None:
        return ()
    return single_changes(data.best, data.state.records, data.context)
