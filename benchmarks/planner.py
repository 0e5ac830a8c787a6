"""Speed of `plimsoll plan`: candidates per second, and the largest question there is.

    python -m benchmarks.planner [--plans 1000000] [--out FILE]

Forecasts all these plans of Llama-3 8B at once, then asks for Llama-3 405B on 1,024 and on 16,384
H100, each in a process of its own from import to answer, with a trace made anew. Seconds depend on
the machine; peak memory is the process's, with torch and all else in it.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import write
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.planner import Planner
from orchestrator.forecast.request import PlanningRequest, device_of, planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.space import build_space
from search_spaces.spec.schema import GIB, SweepSpec

DEVICE = "H100"
QUESTIONS = {1024: 1024, 16384: 2048}  # devices, and samples a step


# what is searched beside the default, so that there are a million plans, no two alike
WIDE = {
    "checkpoint_ratio": [blocks / 32 for blocks in range(33)],
    "pipeline_schedule": ["gpipe", "1f1b", "interleaved"],
    "optimizer": ["adamw_fused", "adamw_foreach", "adamw_8bit"],
}


def spec_for(model: str, global_batch: int, space: Mapping[str, Any]) -> SweepSpec:
    """A model with samples of 8,192 tokens."""
    return SweepSpec.model_validate(
        {
            "model": {"name": model},
            "cluster": {"device": "cuda", "gpu": DEVICE},
            "train": {"global_batch": global_batch, "sequence_length": 8192},
            "space": dict(space),
        }
    )


def question_for(
    model: str, ranks: int, global_batch: int, space: Mapping[str, Any] | None = None
) -> PlanningRequest:
    """The question of a model on so many devices."""
    from workers.models.load import describe

    spec = spec_for(model, global_batch, space or {})
    device = device_of(spec, name=None, file=None, devices_per_node=None)
    return planning_request(spec, describe(spec.model, spec.train), device, ranks=(ranks,))


def rate(plans: int) -> dict[str, Any]:
    """Seconds to forecast a number of plans after tracing, drawn from a wide space."""
    question = question_for("llama-3-8b", 64, 1024, WIDE)
    began = time.perf_counter()
    whole = build_space(question.around(64), 64).table
    enumerating = time.perf_counter() - began
    footprint = Footprints(question.spec, question.kind, run_code=True)(variants_of(whole))
    drawn = np.random.default_rng(0).permutation(len(whole))[:plans]
    table = whole.take(np.sort(drawn))
    calibration = shipped_calibration()
    started = time.perf_counter()
    executions = plan_features(table, question.model, footprint)
    work = workload_of(footprint, question.device, executions)
    told = forecast(work, calibration, float(question.limit_bytes))
    seconds = time.perf_counter() - started
    return {
        "plans": len(told),
        "of_a_space_of": len(whole),
        "enumerating_seconds": round(enumerating, 3),
        "seconds": round(seconds, 3),
        "plans_per_second": round(len(told) / seconds),
        "peak_gib": _peak_gib(),
    }


def ask(ranks: int, cache: Path) -> dict[str, Any]:
    """One whole question on 405 B parameters, in this process."""
    from workers.tracing.trace import trace

    started = time.perf_counter()
    question = question_for("llama-3.1-405b", ranks, QUESTIONS[ranks])
    described = time.perf_counter()
    traced = 0.0

    def footprints(wanted: Any) -> Any:
        nonlocal traced
        before = time.perf_counter()
        found = trace(question.spec, wanted, device=question.kind, cache=cache)
        traced += time.perf_counter() - before
        return found

    planned = Planner(question, footprints, shipped_calibration()).plan()
    best = planned.best
    return {
        "devices": ranks,
        "seconds": round(time.perf_counter() - started, 2),
        "describing_seconds": round(described - started, 2),
        "tracing_seconds": round(traced, 2),
        "plans": planned.recommendation.plans,
        "plans_of_all_counts": planned.forecast_plans,
        "best_plan": None if best is None else best.key,
        "peak_gib": _peak_gib(),
    }


def _peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2)


def _apart(*arguments: str) -> dict[str, Any]:
    """Asks a fresh process; returns its answer and the seconds that it took from its start."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.planner", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    told: dict[str, Any] = json.loads(done.stdout)
    return told | {"process_seconds": round(time.perf_counter() - started, 2)}


def measure(plans: int) -> dict[str, Any]:
    """All figures, each from a process of its own."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        questions = []
        for ranks in QUESTIONS:
            cache = str(Path(folder, str(ranks)))
            fresh = _apart("--ask", str(ranks), "--cache", cache)
            again = _apart("--ask", str(ranks), "--cache", cache)
            questions.append(fresh | {"process_seconds_cached": again["process_seconds"]})
    return {"forecasting": _apart("--rate", str(plans)), "questions": questions}


def main() -> None:
    """Prints the figures, and writes them as JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plans", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rate", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=int, choices=tuple(QUESTIONS), help=argparse.SUPPRESS)
    parser.add_argument("--cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rate:
        print(json.dumps(rate(options.rate)))
        return
    if options.ask:
        print(json.dumps(ask(options.ask, options.cache)))
        return
    result = measure(options.plans)
    told = result["forecasting"]
    print(
        f"{told['plans']:,} plans forecast in {told['seconds']} s,"
        f" {told['plans_per_second']:,} a second, {told['peak_gib']} GiB"
    )
    for one in result["questions"]:
        print(
            f"405 B on {one['devices']:>6,} {DEVICE}: {one['process_seconds']} s in all, of which"
            f" {one['tracing_seconds']} s tracing ({one['process_seconds_cached']} s when traced"
            f" before); {one['plans']:,} plans, {one['peak_gib']} GiB"
        )
    write(result, options.out)


if __name__ == "__main__":
    main()
