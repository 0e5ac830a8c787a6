"""Breakdown of the forecast of one plan, term by term."""

from dataclasses import dataclass

import numpy as np

from orchestrator.forecast.table import ForecastRow, ForecastTable
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.time import TERMS, step_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of a step, in seconds, or one category of the peak, in bytes.

    `amount` is the forecast, `scale` the correction by measurements that it includes (1: none).
    """

    name: str
    amount: float
    scale: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """A plan's forecast, split into terms; `provenance` names the source of the coefficients."""

    expected: ForecastRow
    time: tuple[Term, ...]
    memory: tuple[Term, ...]
    provenance: str


def breakdown(table: ForecastTable, calibration: Calibration) -> Breakdown:
    """Breaks down the forecast of the only plan in a table."""
    forecasts = table.forecasts
    uncorrected = step_terms(table.work, calibration.time).seconds[0]
    memory_scales = np.exp(calibration.memory_scales.logarithms)
    return Breakdown(
        expected=table.row(0),
        time=tuple(
            Term(name=name, amount=float(amount), scale=float(amount / before) if before > 0 else 1)
            for name, amount, before in zip(TERMS, forecasts.terms[0], uncorrected, strict=True)
        ),
        memory=tuple(
            Term(
                name=name, amount=float(forecasts.categories[0, at]), scale=float(memory_scales[at])
            )
            for at, name in enumerate(CATEGORIES)
        ),
        provenance=calibration.provenance,
    )
