"""Measured plans beside their forecasts, as arrays, a row for each plan of one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.cpu_forecast import Measured
from benchmarks.gpu.ceilings import device_of
from benchmarks.gpu.command import Asked
from benchmarks.gpu.measuring import cases, number, spec_of
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import Forecasts, forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from workers.models.load import describe
from workers.tracing.trace import trace

Numbers = NDArray[np.float64]
ENDED = ("measured", "out_of_memory")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beside:
    """Plans of a model that were measured or ran out of memory, and what was forecast of them."""

    model: str
    rows: tuple[Mapping[str, str], ...]
    found: Measured
    said: Forecasts

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """True for each plan that was measured."""
        return np.isfinite(self.found.step_seconds)

    @property
    def outside_bytes(self) -> Numbers:
        """Bytes that are forecast to lie outside of the allocator."""
        column: Numbers = self.said.categories[:, CATEGORIES.index("outside")]
        return column

    def measured(self) -> Measured:
        """The measured plans alone, as `benchmarks.cpu_forecast` judges them."""
        kept = np.flatnonzero(self.fitted)
        return Measured(
            plans=tuple(self.found.plans[row] for row in kept),
            work=self.found.work.take(kept),
            step_seconds=self.found.step_seconds[kept],
            peak_bytes=self.found.peak_bytes[kept],
        )

    def column(self, name: str) -> Numbers:
        """A column of the table as numbers; nan where nobody knows."""
        return np.array([number(row, name) for row in self.rows])


def beside(asked: Asked, rows: Sequence[Mapping[str, str]]) -> tuple[Beside, ...]:
    """All models that have rows, each with the forecasts that nothing had taught."""
    found = []
    for case in cases(asked):
        own = [row for row in rows if row["model"] == case.name and row["outcome"] in ENDED]
        if own:
            device = device_of(asked, own[0]["device"])
            found.append(_beside(case.name, own, spec_of(case, tiny=asked.tiny), device))
    return tuple(found)


def _beside(
    model: str, rows: Sequence[Mapping[str, str]], spec: SweepSpec, device: Device
) -> Beside:
    plans = tuple(Plan.from_dict(json.loads(row["plan"])) for row in rows)
    table = PlanTable.of(plans)
    kind = "cpu" if device.name == "cpu" else "cuda"
    footprint = trace(spec, variants_of(table), device=kind)
    work = workload_of(
        footprint, device, plan_features(table, describe(spec.model, spec.train), footprint)
    )
    limits = [number(row, "limit_bytes") for row in rows]
    limit = float(np.nanmax([*limits, 0.0])) or float(device.memory_bytes)
    return Beside(
        model=model,
        rows=tuple(rows),
        found=Measured(
            plans=plans,
            work=work,
            step_seconds=np.array([number(row, "step_seconds") for row in rows]),
            peak_bytes=np.array([number(row, "held_bytes") for row in rows]),
        ),
        said=forecast(work, shipped_calibration(), limit),
    )
