"""Forecasts of memory against what plans of four models held, over all knobs of one GPU.

    python -m benchmarks.gpu.memory [--out DIR] [--tiny]

Measures the plans that `plans.csv` lacks, with one trial each, and goes on where it stopped. The
forecasts are those before any trial. Beside the reserved peak of torch's allocator stands what the
whole device held, context and libraries included, as its driver tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu.beside import Beside, Numbers, beside
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.measuring import measured_rows
from benchmarks.gpu.verdicts import Verdict, at_least, at_most
from benchmarks.published.metrics import RULED_OUT_BELOW, oom_scores
from search_spaces.spec.schema import GIB

PLANS, SHORT_PLANS, MEDIAN, WORST = 60, 8, 0.03, 0.10


def measure(asked: Asked) -> Found:
    """Measures what is missing, and judges all."""
    rows, left = measured_rows(asked)
    plans = SHORT_PLANS if asked.short else PLANS
    return judged(beside(asked, rows), cuda=asked.device == "cuda", plans=plans, left=left)


def judged(models: Sequence[Beside], *, cuda: bool, plans: int = PLANS, left: str = "") -> Found:
    """Errors of each plan, of each model and of all together."""
    rows = [row for model in models for row in _rows(model, cuda=cuda)]
    of_fitting = [row for row in rows if row["outcome"] == "measured"]
    impossible = [row for row in of_fitting if row["fits"] < RULED_OUT_BELOW]
    out = [row["outcome"] != "measured" for row in rows]
    precision, recall = oom_scores([row["fits"] for row in rows], out)
    reserved, device = _errors(of_fitting, "reserved_error"), _errors(of_fitting, "device_error")
    return Found(
        figures={
            "plans": {"measured": len(of_fitting), "out_of_memory": sum(out)},
            "reserved": _told(reserved),
            "device": _told(device),
            "by_model": {model.model: _of(of_fitting, model.model) for model in models},
            "wrongly_impossible": [f"{row['model']}: {row['words']}" for row in impossible],
            "out_of_memory": {"precision": precision, "recall": recall},
        },
        rows=sorted(rows, key=lambda row: -abs(row["device_error"] or 0.0)),
        shown=("model", "words", "outcome", "held_gib", "forecast_gib", "device_error"),
        verdicts=(
            at_least("plans measured", plans, len(of_fitting), "{:.0f}"),
            *_targets("reserved peak", reserved),
            *_targets("whole device", device),
            Verdict(
                what="fitting plans called impossible",
                asked="0",
                reached=str(len(impossible)) if of_fitting else None,
                holds=not impossible if of_fitting else None,
            ),
        ),
        left=left,
    )


def _rows(model: Beside, *, cuda: bool) -> list[dict[str, Any]]:
    said, held = model.said.peak_bytes, model.found.peak_bytes
    inside = said - model.outside_bytes if cuda else said
    reserved, device = model.column("reserved_bytes"), model.column("device_bytes")
    whole = np.where(np.isfinite(device), device, held)
    return [
        {
            "model": model.model,
            "words": row["words"],
            "key": row["key"],
            "outcome": row["outcome"],
            "fits": float(model.said.fits[at]),
            "reserved_gib": _gib(reserved[at]),
            "forecast_reserved_gib": _gib(inside[at]),
            "reserved_error": _off(inside, reserved, at),
            "held_gib": _gib(held[at]),
            "device_gib": _gib(device[at]),
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


def _errors(rows: Sequence[dict[str, Any]], name: str) -> NDArray[np.float64]:
    return np.abs([row[name] for row in rows if row[name] is not None])


def _told(errors: NDArray[np.float64]) -> dict[str, float | None]:
    if not errors.size:
        return {"median": None, "worst": None}
    return {"median": float(np.median(errors)), "worst": float(np.max(errors))}


def _of(rows: Sequence[dict[str, Any]], model: str) -> dict[str, Any]:
    own = [row for row in rows if row["model"] == model]
    return {
        "plans": len(own),
        "reserved": _told(_errors(own, "reserved_error")),
        "device": _told(_errors(own, "device_error")),
    }


def _targets(of: str, errors: NDArray[np.float64]) -> tuple[Verdict, ...]:
    told = _told(errors)
    return (
        at_most(f"{of}, median error", MEDIAN, told["median"]),
        at_most(f"{of}, worst error", WORST, told["worst"]),
    )


if __name__ == "__main__":
    main("memory", __doc__, measure)
