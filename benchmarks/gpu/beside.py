"""Measured plans beside their forecasts, as arrays, a row for each plan of one model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.cases import CASES
from benchmarks.gpu.ceilings import device_of
from benchmarks.gpu.command import Asked
from benchmarks.gpu.measuring import number, spec_of
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import Forecasts, forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import Workload, workload_of
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
    plans: tuple[Plan, ...]
    work: Workload
    limit_bytes: float
    said: Forecasts

    @property
    def step_seconds(self) -> Numbers:
        """As measured; nan where a plan ran out of memory."""
        return self.column("step_seconds")

    @property
    def peak_bytes(self) -> Numbers:
        """As measured; nan where a plan ran out of memory."""
        return self.column("held_bytes")

    @property
    def fitted(self) -> NDArray[np.bool_]:
        """True for each plan that was measured."""
        return np.isfinite(self.step_seconds)

    @property
    def outside_bytes(self) -> Numbers:
        """Bytes that are forecast to lie outside of the allocator."""
        column: Numbers = self.said.categories[:, CATEGORIES.index("outside")]
        return column

    def measured(self) -> Beside:
        """The measured plans alone."""
        kept = np.flatnonzero(self.fitted)
        work = self.work.take(kept)
        return Beside(
            model=self.model,
            rows=tuple(self.rows[row] for row in kept),
            plans=tuple(self.plans[row] for row in kept),
            work=work,
            limit_bytes=self.limit_bytes,
            said=forecast(work, shipped_calibration(), self.limit_bytes),
        )

    def column(self, name: str) -> Numbers:
        """A column of the table as numbers; nan where nobody knows."""
        return np.array([number(row, name) for row in self.rows])


def beside(asked: Asked, rows: Sequence[Mapping[str, str]]) -> tuple[Beside, ...]:
    """All models that have rows, each with the forecasts that nothing had taught."""
    found = []
    for case in CASES:
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
    footprint = trace(spec, variants_of(table), device="cpu" if device.name == "cpu" else "cuda")
    features = plan_features(table, describe(spec.model, spec.train), footprint)
    work = workload_of(footprint, device, features)
    limits = [number(row, "limit_bytes") for row in rows]
    limit = float(np.nanmax([*limits, 0.0])) or float(device.memory_bytes)
    return Beside(
        model=model,
        rows=tuple(rows),
        plans=plans,
        work=work,
        limit_bytes=limit,
        said=forecast(work, shipped_calibration(), limit),
    )
