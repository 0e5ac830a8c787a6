"""The charts of the report, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orchestrator.report.charts import Figure
from orchestrator.report_page.plan_charts import (
    knobs_chart,
    losses_chart,
    memory_chart,
    terms_chart,
    time_chart,
)
from orchestrator.report_page.told import Told, ablation, loss_curves
from orchestrator.report_page.trial_charts import forecasts_chart, progress_chart, trials_chart
from search_spaces.outcome import Measured, OutOfMemory
from search_spaces.record import Record

_SHOWN = 4  # plans in charts of what one is made of


def figures(told: Told) -> Mapping[str, Figure]:
    """Charts by the name of the place where they are drawn; those without data are left out."""
    found: dict[str, Figure] = {}
    state = told.state
    if any(isinstance(record.outcome, Measured | OutOfMemory) for record in state.records):
        found["trials"] = trials_chart(told)
    if any(record.forecast is not None for record in state.records):
        found["forecasts"] = forecasts_chart(state.records)
    found["progress"] = progress_chart(told)
    if worths := [worth for worth in ablation(told) if worth.ratio is not None]:
        found["knobs"] = knobs_chart(worths)
    if shown := shown_plans(told):
        found["memory"] = memory_chart(told, shown)
        found["time"] = time_chart(shown)
        if told.ground is not None and told.best is not None:
            found["terms"] = terms_chart(told, shown)
    if (curves := loss_curves(state)) is not None:
        found["losses"] = losses_chart(curves)
    return MappingProxyType({name: figure for name, figure in found.items() if figure["data"]})


def shown_plans(told: Told) -> list[Record]:
    """The answer, what one would start with, and some that are equal, as far as measured."""
    first = [told.best, told.baseline, *told.state.equals]
    kept = {record.number: record for record in first if record is not None}
    return list(kept.values())[:_SHOWN]
