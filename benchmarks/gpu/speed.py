"""Forecasts of speed against what plans took, over all knobs of one GPU.

    python -m benchmarks.gpu.speed [--judge] [--out DIR] [--tiny]

The plans are those of `benchmarks.gpu.memory`, from the same `plans.csv`; what that lacks is
measured. Each model's plans are forecast without any trial, and after five, drawn several times;
those five are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.beside import Beside, Numbers, beside
from benchmarks.gpu.command import Asked, Figures, main
from benchmarks.gpu.measuring import measured_rows
from benchmarks.published.metrics import kendall_tau, median, percentage_errors
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast

TARGETS = {"median_error": 0.10, "median_error_after": 0.04, "lowest_tau": 0.9}
RECORDS, DRAWS, NOISE = 5, 20, 0.03


def measure(asked: Asked) -> Figures:
    """Measures what is missing, and judges all."""
    rows, left = measured_rows(asked)
    return judged(beside(asked, rows)) | {"left": left}


def judged(models: Sequence[Beside]) -> Figures:
    """Errors of all plans together, and how each model's plans are ranked."""
    by_model = {model.model: _judged(model.measured()) for model in models}
    told = by_model.values()
    taus, taus_after = (
        [tau for one in told if (tau := one[name]) is not None] for name in ("tau", "tau_after")
    )
    return {
        "targets": TARGETS,
        "median_error": median([error for one in told for error in one["errors"]]),
        "median_error_after": median([error for one in told for error in one["errors_after"]]),
        "lowest_tau": min(taus, default=None),
        "lowest_tau_after": min(taus_after, default=None),
        "by_model": {name: _short(one) for name, one in by_model.items()},
        "rows": [row for model in models for row in _rows(model)],
    }


def judge(found: Beside, records: Sequence[int]) -> tuple[Numbers, float | None]:
    """Errors of speed and Kendall's tau, of what was no record."""
    told = np.array(records, dtype=int)
    calibration = shipped_calibration().learned(
        found.work.take(told), found.step_seconds[told], found.peak_bytes[told]
    )
    rest = np.setdiff1d(np.arange(len(found.plans)), told)
    said = forecast(found.work.take(rest), calibration, 1.0).step_seconds
    took = found.step_seconds[rest]
    return percentage_errors(said, took), kendall_tau(1 / said, 1 / took, noise=NOISE)


def _judged(found: Beside) -> dict[str, Any]:
    """Errors without trials and after some; nothing after them where there are too few plans."""
    rng = np.random.default_rng(0)
    errors, tau = judge(found, ())
    drawn = []
    if len(found.plans) > RECORDS + 1:
        drawn = [
            judge(found, rng.permutation(len(found.plans))[:RECORDS].tolist()) for _ in range(DRAWS)
        ]
    taus = [one for _, one in drawn if one is not None]
    return {
        "errors": errors.tolist(),
        "errors_after": [error for one, _ in drawn for error in one.tolist()],
        "tau": tau,
        "tau_after": float(np.mean(taus)) if taus else None,
    }


def _short(told: dict[str, Any]) -> dict[str, Any]:
    return {
        "plans": len(told["errors"]),
        "median_error": median(told["errors"]),
        "median_error_after": median(told["errors_after"]),
        "tau": told["tau"],
        "tau_after": told["tau_after"],
    }


def _rows(model: Beside) -> list[dict[str, Any]]:
    """The measured plans, worst forecast first."""
    said, took = model.said.step_seconds, model.step_seconds
    rows = [
        {
            "model": model.model,
            "words": model.rows[at]["words"],
            "step_seconds": float(took[at]),
            "forecast_seconds": float(said[at]),
            "error": float(said[at] / took[at]) - 1,
            "limited_by": model.said.limited_by(int(at)),
        }
        for at in np.flatnonzero(model.fitted)
    ]
    return sorted(rows, key=lambda row: -abs(row["error"]))


if __name__ == "__main__":
    main("speed", __doc__, measure)
