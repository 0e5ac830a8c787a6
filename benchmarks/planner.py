"""Speed of `plimsoll plan`: candidates per second, and seconds of whole answers.

    python -m benchmarks.planner [--plans 1000000] [--out FILE]

Forecasts all these plans of Llama-3 8B at once. Then the command itself answers questions as users
ask them, first of a model that it has not seen, then again: seconds depend on the machine.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.output import command_line, write
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.request import device_of, planning_request
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.space import build_space
from search_spaces.specification.schema import SweepSpec

DEVICE = "H100"
MIXTURES = ("mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-20b", "deepseek-v2-lite")
QUESTIONS = (  # model, devices, samples a step, tokens of a sample
    ("llama-3-8b", 8, 64, 8192),
    ("llama-3-8b", 64, 1024, 8192),
    ("llama-3.1-405b", 16384, 2048, 8192),
    ("llama-3-8b", 8, 8, 131072),
    *((model, devices, 8 * devices, 8192) for model in MIXTURES for devices in (8, 64)),
)
# what is searched beside the default, so that there are a million plans, no two alike
WIDE = {
    "checkpoint_ratio": [blocks / 32 for blocks in range(33)],
    "pipeline_schedule": ["gpipe", "1f1b", "interleaved"],
    "optimizer": ["adamw_fused", "adamw_foreach", "adamw_8bit"],
}


def specification(model: str, global_batch: int, tokens: int = 8192) -> dict[str, Any]:
    """Returns the specification of a question."""
    return {
        "model": {"name": model},
        "cluster": {"device": "cuda", "gpu": DEVICE},
        "train": {"global_batch": global_batch, "sequence_length": tokens},
    }


def rate(plans: int) -> dict[str, Any]:
    """Seconds to forecast a number of plans after tracing, drawn from a wide space."""
    from workers.models.load import describe

    spec = SweepSpec.model_validate(specification("llama-3-8b", 1024) | {"space": WIDE})
    device = device_of(spec, name=None, devices_per_node=None)
    model = describe(spec.model, spec.train)
    question = planning_request(spec, model, device, ranks=(64,))
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
    }


def ask(model: str, devices: int, global_batch: int, tokens: int) -> dict[str, Any]:
    """Seconds of a question to the command, with nothing cached and with all of it; its answer."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-bench-") as folder:
        file = Path(folder, "spec.yaml")
        file.write_text(json.dumps(specification(model, global_batch, tokens)))
        command = [str(Path(sys.executable).with_name("plimsoll")), "plan", str(file)]
        environment = os.environ | {"XDG_CACHE_HOME": folder}
        asked: dict[str, Any] = {"model": model, "devices": devices, "tokens": tokens}
        for name in ("new", "cached"):
            started = time.perf_counter()
            told = subprocess.run(
                [*command, "--gpus", str(devices), "--json"],
                env=environment,
                cwd=folder,
                check=False,  # 1 where nothing fits
                capture_output=True,
            )
            asked[f"{name}_seconds"] = round(time.perf_counter() - started, 1)
        result = json.loads(told.stdout)["result"]
        answer = result["recommendation"]
        best = next(iter(answer["best"]), None)
        return asked | {
            "plans": result["forecast_plans"],
            "ruled_out": dict(answer["ruled_out"]),
            "recommended": answer["fitting"],
            "tokens_per_second_per_device": best and best["tokens_per_second_per_device"],
            "best": best and best["plan"],
        }


def main() -> None:
    """Prints the figures, and writes them as JSON where asked."""
    parser = command_line(__doc__)
    parser.add_argument("--plans", type=int, default=1_000_000)
    options = parser.parse_args()
    questions = [ask(*one) for one in QUESTIONS]
    for one in questions:
        print(one, flush=True)
    forecasting = rate(options.plans)
    print(forecasting)
    write({"forecasting": forecasting, "questions": questions}, options.out)


if __name__ == "__main__":
    main()
