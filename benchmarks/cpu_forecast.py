"""Forecasts for this project's own sweeps on a CPU, against what was measured.

    python -m benchmarks.cpu_forecast RECORDS [--device FILE] [--out FILE]

RECORDS is what `benchmarks.cpu_sweeps` wrote; FILE a device that `plimsoll doctor --probe`
measured on the same machine. Each model's plans are forecast without any record, and after five,
drawn several times; those five are not judged.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.output import write
from benchmarks.published.metrics import kendall_tau, percentage_errors
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.memory import CATEGORIES
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.time import TERMS
from search_spaces.costs.workload import Workload, workload_of
from search_spaces.hardware.catalogue import known_device, load_device_file
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable
from search_spaces.spec.schema import SweepSpec
from workers.models.load import describe
from workers.tracing.trace import trace

MIB = 2**20
RECORDS, DRAWS, NOISE = 5, 20, 0.03
KNOBS = ("engine", "zero_stage", "tensor", "pipeline", "precision", "checkpoint_ratio", "attention")
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """The measured plans of one model."""

    plans: tuple[Plan, ...]
    work: Workload
    step_seconds: Numbers
    peak_bytes: Numbers


def load(kept: Mapping[str, Any], model: str, device: Device) -> Measured:
    """The plans of a model that could be measured."""
    spec = SweepSpec.model_validate(kept["specs"][model])
    records = [r for r in kept["records"] if r["model"] == model and r["ended"] == "measured"]
    plans = tuple(Plan.from_dict(record["plan"]) for record in records)
    table = PlanTable.of(plans)
    footprint = trace(spec, variants_of(table), device="cpu")
    rows = plan_features(table, describe(spec.model, spec.train), footprint)
    return Measured(
        plans=plans,
        work=workload_of(footprint, device, rows),
        step_seconds=np.array([record["step_seconds"] for record in records]),
        peak_bytes=np.array([record["peak_mib"] for record in records]) * MIB,
    )


def judge(found: Measured, records: Sequence[int]) -> tuple[Numbers, Numbers, float | None]:
    """Errors of speed and of memory, and Kendall's tau, of what was no record."""
    told = np.array(records, dtype=int)
    calibration = shipped_calibration().learned(
        found.work.take(told), found.step_seconds[told], found.peak_bytes[told]
    )
    rest = np.setdiff1d(np.arange(len(found.plans)), told)
    said = forecast(found.work.take(rest), calibration, 1.0)
    speed = percentage_errors(said.step_seconds, found.step_seconds[rest])
    memory = percentage_errors(said.peak_bytes, found.peak_bytes[rest])
    tau = kendall_tau(1 / said.step_seconds, 1 / found.step_seconds[rest], noise=NOISE)
    return speed, memory, tau


def figures(found: Measured) -> dict[str, Any]:
    """Returns the errors without records and after some, over several draws of them."""
    rng = np.random.default_rng(0)
    speed, memory, tau = judge(found, ())
    drawn = [
        judge(found, rng.permutation(len(found.plans))[:RECORDS].tolist()) for _ in range(DRAWS)
    ]
    taus = [one[2] for one in drawn if one[2] is not None]
    return {
        "plans": len(found.plans),
        "throughput_median_ape": float(np.median(speed)),
        "memory_median_ape": float(np.median(memory)),
        "kendall_tau": tau,
        "throughput_median_ape_k5": float(np.median(np.concatenate([one[0] for one in drawn]))),
        "memory_median_ape_k5": float(np.median(np.concatenate([one[1] for one in drawn]))),
        "kendall_tau_k5": float(np.mean(taus)),
        "by_knob": by_knob(found),
    }


def by_knob(found: Measured) -> dict[str, dict[str, Any]]:
    """Returns median logarithms of forecast over measured, by the value of each knob."""
    said = forecast(found.work, shipped_calibration(), 1.0)
    speed = np.log(said.step_seconds / found.step_seconds)
    memory = np.log(said.peak_bytes / found.peak_bytes)
    told: dict[str, dict[str, Any]] = {}
    for knob in KNOBS:
        rows: dict[str, list[int]] = defaultdict(list)
        for row, plan in enumerate(found.plans):
            rows[str(getattr(plan, knob))].append(row)
        told[knob] = {
            value: {
                "plans": len(at),
                "step_seconds": round(float(np.median(speed[at])), 3),
                "peak_bytes": round(float(np.median(memory[at])), 3),
            }
            for value, at in sorted(rows.items())
        }
    return told


def main() -> None:
    """Prints the figures of each model, and writes them where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("--device", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--rows", action="store_true", help="print every plan too")
    given = parser.parse_args()
    kept = json.loads(given.records.read_text("utf-8"))
    device = load_device_file(given.device)[0] if given.device else known_device("cpu")
    told = {}
    for model in kept["specs"]:
        found = load(kept, model, device)
        told[model] = figures(found)
        print(model, json.dumps({k: v for k, v in told[model].items() if k != "by_knob"}))
        if given.rows:
            _print_rows(found)
    write({"device": device.name, "models": told}, given.out)


def _print_rows(found: Measured) -> None:
    said = forecast(found.work, shipped_calibration(), 1.0)
    for row in np.argsort(found.step_seconds):
        plan = found.plans[row]
        knobs = " ".join(f"{k}={getattr(plan, k)}" for k in (*KNOBS, "micro_batch"))
        print(
            f"{found.step_seconds[row]:.2f} s, forecast {said.step_seconds[row]:.2f};"
            f" {found.peak_bytes[row] / MIB:.0f} MiB, forecast {said.peak_bytes[row] / MIB:.0f};"
            f" {knobs}",
            {k: round(v, 3) for k, v in zip(TERMS, said.terms[row], strict=True) if v > 0.01},
            {
                k: round(v / MIB)
                for k, v in zip(CATEGORIES, said.categories[row], strict=True)
                if v > MIB
            },
        )


if __name__ == "__main__":
    main()
