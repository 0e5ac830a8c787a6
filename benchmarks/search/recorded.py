"""Forecasts of a recording by the product's own way: from its specification and its plans."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.published.cells import Row
from benchmarks.search.columns import value_of
from benchmarks.search.forecasts import spread
from benchmarks.search.tables import SurfacesError, number
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.request import PlanningRequest, device_of, planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import SearchPrior, search_prior
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.space import build_space
from search_spaces.specification.load import load_spec
from search_spaces.specification.schema import GIB
from workers.models.load import describe

_CPU = "cpu"


def expected_plans(spec_file: Path, rows: Sequence[Row]) -> SearchPrior:
    """Forecasts the candidates; nan for what is no plan of the specification.

    Args:
        spec_file: The specification that was recorded.
        rows: A row of each candidate, with its knobs by their names.

    Raises:
        UserError: If the specification has faults, or its model cannot be described or traced.
    """
    question = _question(spec_file, rows[0])
    ranks = question.ranks[0]
    plans = _plans_of(rows, build_space(question.rule_context(ranks), ranks).table)
    at = [row for row, plan in enumerate(plans) if plan is not None]
    if not at:
        raise SurfacesError(f"{spec_file} has none of the plans that were recorded")
    table = PlanTable.of(plan for plan in plans if plan is not None)
    footprint = Footprints(question.spec, question.kind, run_code=True)(variants_of(table))
    executions = plan_features(table, question.model, footprint)
    limit = GIB * (number(rows[0], "gpu_mem_gib") or question.limit_bytes / GIB)
    work = workload_of(footprint, question.device, executions)
    told = search_prior(work, shipped_calibration(), limit)
    return SearchPrior(
        **{f.name: spread(getattr(told, f.name), at, len(rows)) for f in fields(SearchPrior)}
    )


def _question(spec_file: Path, row: Row) -> PlanningRequest:
    """Returns the question to `plimsoll plan` on the devices that the recording had."""
    spec = load_spec(spec_file)
    gpu, gpus = row.written("gpu"), number(row, "n_gpus")
    if gpu.lower() == _CPU:
        cluster = spec.cluster.model_copy(update={"device": _CPU})
        spec = spec.model_copy(update={"cluster": cluster})
    device = device_of(spec, name=gpu or None, devices_per_node=None)
    model = describe(spec.model, spec.train)
    return planning_request(spec, model, device, ranks=(round(gpus),) if gpus else ())


def _plans_of(rows: Sequence[Row], table: PlanTable) -> list[Plan | None]:
    """The plan of each row: the one that has its knobs; None if there is none, or several."""
    columns = [
        name
        for name in KNOB_NAMES
        if len(table.values[name]) > 1 and any(row.text(name) for row in rows)
    ]
    for name in columns:
        words = {value_of(row, name) for row in rows}
        kept = np.array([_word(value) in words for value in table.values[name]])
        table = table.take(kept[table.codes[name]])
    plans: dict[tuple[str, ...], Plan | None] = {}
    for plan in table:
        key = tuple(_word(getattr(plan, name)) for name in columns)
        plans[key] = None if key in plans else plan
    return [plans.get(tuple(value_of(row, name) for name in columns)) for row in rows]


def _word(value: Any) -> str:
    """A knob's value as `value_of` reads it."""
    return value_of(Row({"": str(value)}), "")
