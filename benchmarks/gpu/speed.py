"""Forecasts of speed against what plans of four models took, over all knobs of one GPU.

    python -m benchmarks.gpu.speed [--out DIR] [--tiny]

The plans are those of `benchmarks.gpu.memory`, from the same `plans.csv`; what that lacks is
measured. Each model's plans are forecast without any trial, and after five, drawn several times;
those five are not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.cpu_forecast import DRAWS, RECORDS, Measured, judge
from benchmarks.gpu.beside import Beside, beside
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.measuring import measured_rows
from benchmarks.gpu.verdicts import at_least, at_most
from benchmarks.published.metrics import median

WITHOUT, AFTER, TAU = 0.10, 0.04, 0.9


def measure(asked: Asked) -> Found:
    """Measures what is missing, and judges all."""
    rows, left = measured_rows(asked)
    return judged(beside(asked, rows), left=left)


def judged(models: Sequence[Beside], left: str = "") -> Found:
    """Errors of all plans together, and how each model's plans are ranked."""
    by_model = {model.model: _judged(model.measured()) for model in models}
    told = by_model.values()
    without = [error for one in told for error in one["errors"]]
    after = [error for one in told for error in one["errors_after"]]
    tau = min((t for one in told if (t := one["tau"]) is not None), default=None)
    tau_after = min((t for one in told if (t := one["tau_after"]) is not None), default=None)
    return Found(
        figures={
            "records": RECORDS,
            "draws": DRAWS,
            "median_error": median(without),
            "median_error_after": median(after),
            "lowest_tau": tau,
            "lowest_tau_after": tau_after,
            "by_model": {name: _short(one) for name, one in by_model.items()},
        },
        rows=[row for model in models for row in _rows(model)],
        shown=("model", "words", "step_seconds", "forecast_seconds", "error", "limited_by"),
        verdicts=(
            at_most("median error without trials", WITHOUT, median(without)),
            at_most(f"median error after {RECORDS} trials", AFTER, median(after)),
            at_least("Kendall's tau, lowest of the models", TAU, tau),
            at_least(f"the same after {RECORDS} trials", TAU, tau_after),
        ),
        left=left,
    )


def _judged(found: Measured) -> dict[str, Any]:
    """Errors without trials and after some; nothing after them where there are too few plans."""
    rng = np.random.default_rng(0)
    errors, _, tau = judge(found, ())
    drawn = []
    if len(found.plans) > RECORDS + 1:
        drawn = [
            judge(found, rng.permutation(len(found.plans))[:RECORDS].tolist()) for _ in range(DRAWS)
        ]
    taus = [one[2] for one in drawn if one[2] is not None]
    return {
        "errors": errors.tolist(),
        "errors_after": [error for one in drawn for error in one[0].tolist()],
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
    said, took = model.said.step_seconds, model.found.step_seconds
    rows = [
        {
            "model": model.model,
            "words": model.rows[at]["words"],
            "key": model.rows[at]["key"],
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
