"""Forecasts of jobs whose end their owners reported in public, as `plimsoll plan` makes them.

    python -m benchmarks.public_jobs [--out FILE]

`public_jobs.yaml` has the jobs, each with its source. A job fit, ran out of device memory, or was
killed for the host's; some reported their speed. No coefficient was fitted to any of them. The
forecast is right if it recommends a plan that fit, and refuses another for the memory that lacked,
and if a reported speed lies in its interval.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.output import command_line, write
from orchestrator.forecast.calibration import Footprints
from orchestrator.forecast.request import device_of, planning_request
from orchestrator.forecast.table import ForecastRow, single_plan_table
from search_spaces.costs.calibration import shipped_calibration
from search_spaces.plan import Plan
from search_spaces.specification.schema import GIB, SweepSpec

TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
JOBS: tuple[Mapping[str, Any], ...] = tuple(TABLE["jobs"])
_FIELDS: Mapping[str, tuple[str, ...]] = {  # in the order of `models`
    "llama-3-8b": (
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
        *("num_key_value_heads", "vocab_size"),
    ),
    "gpt2": ("n_embd", "n_inner", "n_layer", "n_head", "n_head", "vocab_size"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Answer of `plimsoll plan` for a job: its end, and the forecast that it comes from."""

    end: str
    row: ForecastRow
    is_right: bool

    def __str__(self) -> str:
        forecast = self.row.forecast
        rate = forecast.samples_per_second
        return (
            f"{self.end}: {forecast.fits:.3f} to fit, {forecast.peak_bytes.value / GIB:.1f} GiB,"
            f" {forecast.host_bytes / GIB:.0f} GiB of the host,"
            f" {rate.value:.3g} ({rate.low:.3g} to {rate.high:.3g}) samples/s"
        )


def judge(job: Mapping[str, Any]) -> Judged:
    """Forecasts a job with the shipped calibration, and compares its end.

    Raises:
        UserError: If a rule refuses its plan.
    """
    from workers.models.load import describe

    plan = _plan(job)
    spec = _spec(job, plan)
    device = device_of(spec, name=None, devices_per_node=None)
    request = planning_request(spec, describe(spec.model, spec.train), device)
    trace = Footprints(spec, request.kind, run_code=True)
    table = single_plan_table(request, plan, trace, shipped_calibration().for_device(device))
    row = table.row(0)
    refused = "out of memory" if table.hosted[0] else "host memory"
    end = "fits" if row.keeps_headroom else refused
    rate = row.forecast.samples_per_second
    reported = job.get("samples_per_second", rate.value)
    is_right = end == job["end"] and rate.low <= reported <= rate.high
    return Judged(end=end, row=row, is_right=is_right)


def _plan(job: Mapping[str, Any]) -> Plan:
    knobs = {"batching": "padded", "checkpoint_ratio": 0.0, "attention": "sdpa", "zero_stage": 0}
    for name in job["settings"]:
        knobs |= TABLE["settings"][name]
    counts = {name: job.get(name, 1) for name in ("micro_batch", "accumulation")}
    return Plan.from_dict({"precision": "bf16", **knobs, **counts, "data": job["ranks"]})


def _spec(job: Mapping[str, Any], plan: Plan) -> SweepSpec:
    preset, *shape = TABLE["models"].get(job["model"], [job["model"]])
    others = shape.pop() if shape and isinstance(shape[-1], dict) else {}
    config = dict(zip(_FIELDS.get(preset, ()), shape, strict=False)) | others
    if preset == "llama-3-8b" and shape:
        config["head_dim"] = config["hidden_size"] // config["num_attention_heads"]
    train = {"precision": plan.precision, "sequence_length": job["tokens"]}
    if "lora" in job:
        train |= {"method": "lora", "lora": {"base": "bf16", **job["lora"]}}
    cluster = {"gpu": job["gpu"], "gpus_per_node": 8, "host_memory_gib": job.get("host")}
    return SweepSpec.model_validate(
        {
            "model": {"name": preset, "config": config},
            "cluster": {"device": "cuda", "workers": job["ranks"], **cluster},
            "train": {"global_batch": plan.global_batch, **train},
        }
    )


def main() -> None:
    """Prints the answer for each job, and writes them as JSON where asked."""
    options = command_line(__doc__).parse_args()
    answers = list[str]()
    for job in JOBS:
        judged = judge(job)
        mark, reported = "right" if judged.is_right else "wrong", job["end"]
        answers.append(f"{mark}, {job['source']}: {reported}; forecast {judged}")
        print(answers[-1], flush=True)
    right = sum(answer.startswith("right") for answer in answers)
    write({"jobs": len(JOBS), "right": right, "answers": answers}, options.out)


if __name__ == "__main__":
    main()
