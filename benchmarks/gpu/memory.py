"""Forecasts of memory against what plans held, over all knobs of one GPU.

    python -m benchmarks.gpu.memory [--judge] [--out DIR] [--tiny]

Measures the plans that `plans.csv` lacks, with one trial each, and goes on where it stopped. The
forecasts are those before any trial. Beside the reserved peak of torch's allocator stands what the
whole device held, context and libraries included, as its driver tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.beside import Beside, Numbers, beside
from benchmarks.gpu.command import Asked, Figures, main
from benchmarks.gpu.measuring import measured_rows
from benchmarks.published.metrics import RULED_OUT_BELOW, oom_scores
from search_spaces.spec.schema import GIB

TARGETS = {"median": 0.03, "worst": 0.10, "wrongly_impossible": 0}


def measure(asked: Asked) -> Figures:
    """Measures what is missing, and judges all."""
    rows, left = measured_rows(asked)
    return judged(beside(asked, rows), cuda=asked.device == "cuda") | {"left": left}


def judged(models: Sequence[Beside], *, cuda: bool) -> Figures:
    """Errors of each plan, of each model and of all together."""
    rows = [row for model in models for row in _rows(model, cuda=cuda)]
    fitting = [row for row in rows if row["outcome"] == "measured"]
    out = [row["outcome"] != "measured" for row in rows]
    precision, recall = oom_scores([row["fits"] for row in rows], out)
    return {
        "targets": TARGETS,
        "plans": {"measured": len(fitting), "out_of_memory": sum(out)},
        **_errors(fitting),
        "by_model": {
            model.model: _errors([row for row in fitting if row["model"] == model.model])
            for model in models
        },
        "wrongly_impossible": [
            f"{row['model']}: {row['words']}" for row in fitting if row["fits"] < RULED_OUT_BELOW
        ],
        "out_of_memory": {"precision": precision, "recall": recall},
        "rows": sorted(rows, key=lambda row: -abs(row["device_error"] or 0.0)),
    }


def _rows(model: Beside, *, cuda: bool) -> list[dict[str, Any]]:
    said, held = model.said.peak_bytes, model.peak_bytes
    inside = said - model.outside_bytes if cuda else said
    reserved, device = model.column("reserved_bytes"), model.column("device_bytes")
    whole = np.where(np.isfinite(device), device, held)
    return [
        {
            "model": model.model,
            "words": row["words"],
            "outcome": row["outcome"],
            "fits": float(model.said.fits[at]),
            "reserved_gib": _gib(reserved[at]),
            "reserved_error": _off(inside, reserved, at),
            "held_gib": _gib(held[at]),
            "forecast_gib": _gib(said[at]),
            "device_error": _off(said, whole, at),
            "wanted_gib": _gib(model.column("wanted_bytes")[at]),
        }
        for at, row in enumerate(model.rows)
    ]


def _off(said: Numbers, measured: Numbers, at: int) -> float | None:
    """Forecast over measurement, less 1; None where nothing was measured."""
    truth = float(measured[at])
    return float(said[at]) / truth - 1 if np.isfinite(truth) and truth > 0 else None


def _gib(value: float) -> float | None:
    return value / GIB if np.isfinite(value) else None


def _errors(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    told: dict[str, dict[str, float | None]] = {}
    for of in ("reserved", "device"):
        errors = np.abs([e for row in rows if (e := row[f"{of}_error"]) is not None])
        some = bool(errors.size)
        told[of] = {
            "median": float(np.median(errors)) if some else None,
            "worst": float(np.max(errors)) if some else None,
        }
    return told


if __name__ == "__main__":
    main("memory", __doc__, measure)
