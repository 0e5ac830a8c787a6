"""Speed of `plimsoll plan`: candidates per second, and the largest question there is.

    python -m benchmarks.planner [--plans 1000000] [--out FILE]

Forecasts all these plans of Llama-3 8B at once, then asks for Llama-3 405B on 1,024 and on 16,384
H100, each in a process of its own, with a trace made anew. Seconds depend on the machine; peak
memory is the process's, with torch and all else in it.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
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
from search_spaces.specification.schema import GIB, SweepSpec

DEVICE = "H100"
QUESTIONS = {1024: 1024, 16384: 2048}  # devices, and samples a step
# what is searched beside the default, so that there are a million plans, no two alike
WIDE = {
    "checkpoint_ratio": [blocks / 32 for blocks in range(33)],
    "pipeline_schedule": ["gpipe", "1f1b", "interleaved"],
    "optimizer": ["adamw_fused", "adamw_foreach", "adamw_8bit"],
}


def question_for(
    model: str, ranks: int, global_batch: int, space: Mapping[str, Any]
) -> PlanningRequest:
    """Returns the request for a model on a number of devices, with samples of 8,192 tokens."""
    from workers.models.load import describe

    spec = SweepSpec.model_validate(
        {
            "model": {"name": model},
            "cluster": {"device": "cuda", "gpu": DEVICE},
            "train": {"global_batch": global_batch, "sequence_length": 8192},
            "space": dict(space),
        }
    )
    device = device_of(spec, name=None, devices_per_node=None)
    return planning_request(spec, describe(spec.model, spec.train), device, ranks=(ranks,))


def rate(plans: int) -> dict[str, Any]:
    """Seconds to forecast a number of plans after tracing, drawn from a wide space."""
    question = question_for("llama-3-8b", 64, 1024, WIDE)
    whole = build_space(question.rule_context(64), 64).table
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
        "seconds": round(seconds, 3),
        "plans_per_second": round(len(told) / seconds),
        "peak_gib": _peak_gib(),
    }


def ask(ranks: int) -> dict[str, Any]:
    """One whole question on 405 B parameters."""
    from workers.tracing.trace import trace

    started = time.perf_counter()
    question = question_for("llama-3.1-405b", ranks, QUESTIONS[ranks], {})
    traced = 0.0

    def footprints(wanted: Any) -> Any:
        nonlocal traced
        before = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as cache:
            found = trace(question.spec, wanted, device=question.kind, cache=Path(cache))
        traced += time.perf_counter() - before
        return found

    planned = Planner(question, footprints, shipped_calibration()).plan()
    return {
        "devices": ranks,
        "seconds": round(time.perf_counter() - started, 2),
        "tracing_seconds": round(traced, 2),
        "plans": planned.recommendation.plans,
        "peak_gib": _peak_gib(),
    }


def _peak_gib() -> float:
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, 2)


def main() -> None:
    """Prints the figures, and writes them as JSON where asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--plans", type=int, default=1_000_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as apart:
        forecasting = apart.submit(rate, options.plans).result()
        questions = list(apart.map(ask, QUESTIONS))
    print(
        f"{forecasting['plans']:,} plans forecast in {forecasting['seconds']} s,"
        f" {forecasting['plans_per_second']:,} a second, {forecasting['peak_gib']} GiB"
    )
    for one in questions:
        print(
            f"405 B on {one['devices']:>6,} {DEVICE}: {one['seconds']} s, of which"
            f" {one['tracing_seconds']} s tracing; {one['plans']:,} plans, {one['peak_gib']} GiB"
        )
    write({"forecasting": forecasting, "questions": questions}, options.out)


if __name__ == "__main__":
    main()
