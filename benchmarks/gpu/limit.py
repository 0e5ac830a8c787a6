"""Share of the matmul rate that the winner for the 3B shape reaches, and what takes the rest.

    python -m benchmarks.gpu.limit [--out DIR] [--tiny]

The winner is the best plan that `benchmarks.gpu.sweep` found for Llama-3.2 3B, else the fastest of
`plans.csv`. It is measured once more; its model FLOPs (without recomputation) stand over the
fastest matmul of `device.yaml` in its precision. A trace of some steps says where their time goes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu import measuring
from benchmarks.gpu.cases import LLAMA_1B, LLAMA_3B, Case
from benchmarks.gpu.ceilings import best_matmul, device_of
from benchmarks.gpu.choosing import space_of
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.verdicts import Verdict, at_least
from orchestrator.report.labels import plan_words
from search_spaces.errors import ClusterError
from search_spaces.plan import Plan
from search_spaces.settings.render import render_environment
from search_spaces.spec.load import spec_to_yaml
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured

SHARE = 0.65
WINNERS = "winners.json"  # what the sweep writes: by case, its best plan
_OBJECTIVE = {"min_steps": 12, "max_steps": 40, "max_seconds": 60.0, "interval": 0.005}
_TINY_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 0.3, "interval": 0.1}
_TRACE_SECONDS = 240.0


def measure(asked: Asked) -> Found:
    """Measures the winner, and traces it."""
    case = LLAMA_1B if asked.tiny else LLAMA_3B
    length, plan, source = winner_of(asked, case)
    objective = _TINY_OBJECTIVE if asked.tiny else _OBJECTIVE
    spec = case.spec(tiny=asked.tiny, sequence_length=length, objective=objective)
    if plan is None:
        plan = space_of(spec, asked.group.here(spec)).baseline
    report = asked.group.measure(spec, plan)
    if not isinstance(report.outcome, Measured) or report.fingerprint is None:
        raise ClusterError(f"the winner {plan_words(plan)} could not be measured: {report.outcome}")
    asked.free_device()  # for the trace
    rate = best_matmul(device_of(asked, report.fingerprint.device_name), plan.precision)
    seconds = traced(spec, plan)
    return judged(report.outcome, rate, seconds, plan, source)


def winner_of(asked: Asked, case: Case) -> tuple[int | None, Plan | None, str]:
    """Sequence length in tokens, plan and where it comes from; no plan where nothing was found."""
    file = asked.out / WINNERS
    if file.exists():
        told = [one for one in json.loads(file.read_text("utf-8")) if one["model"] == case.name]
        if told:
            best = max(told, key=lambda one: one["tokens_per_second"])
            return best["sequence_length"], Plan.from_dict(best["plan"]), "the sweep's best plan"
    rows = [
        row
        for row in measuring.read(asked.out / measuring.FILE)
        if row["model"] == case.name and row["outcome"] == "measured"
    ]
    if rows:
        fastest = max(rows, key=lambda row: float(row["samples_per_second"]))
        return None, Plan.from_dict(json.loads(fastest["plan"])), "the fastest of plans.csv"
    return None, None, "the plan that one would start with: nothing was searched yet"


def traced(spec: SweepSpec, plan: Plan) -> Mapping[str, float] | None:
    """Seconds of a step by kind of work, from a process of its own; None if it fails."""
    with TemporaryDirectory(prefix="plimsoll-gpu-") as kept:
        file, out = Path(kept, "spec.yaml"), Path(kept, "profile.json")
        file.write_text(spec_to_yaml(spec), "utf-8")
        command = [sys.executable, "-m", "benchmarks.gpu.profile", str(file)]
        needed = render_environment(plan, spec.cluster.device)
        try:
            subprocess.run(
                [*command, json.dumps(plan.as_dict()), str(out)],
                env={**os.environ, **dict(needed)},
                stdout=sys.stderr,
                timeout=_TRACE_SECONDS,
                check=True,
            )
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
            return None
        told: Mapping[str, float] = json.loads(out.read_text("utf-8"))
        return told


def judged(
    outcome: Measured,
    matmul_flops_per_second: float,
    seconds: Mapping[str, float] | None,
    plan: Plan,
    source: str,
) -> Found:
    """Share of the matmul rate, and of the time by kind of work."""
    reached = None
    if outcome.flops_per_step is not None:
        reached = outcome.flops_per_step / outcome.step_seconds.value / matmul_flops_per_second
    whole = sum(seconds.values()) if seconds else 0.0
    rows: list[dict[str, Any]] = [
        {"work": kind, "seconds": spent, "share": spent / whole}
        for kind, spent in (seconds or {}).items()
    ]
    return Found(
        figures={
            "plan": plan.as_dict(),
            "words": plan_words(plan),
            "source": source,
            "samples_per_second": outcome.samples_per_second.value,
            "step_seconds": outcome.step_seconds.value,
            "flops_per_step": outcome.flops_per_step,
            "matmul_flops_per_second": matmul_flops_per_second,
            "share_of_matmul_rate": reached,
            "mfu_of_data_sheet": outcome.mfu,
            "throttled": list(outcome.conditions.throttled),
            "recomputed_share_of_blocks": plan.checkpoint_ratio,
        },
        rows=rows,
        shown=("work", "seconds", "share"),
        verdicts=(
            at_least("model FLOPs over the matmul rate", SHARE, reached, "{:.0%}"),
            Verdict(
                what="what takes the time is told",
                asked="a trace",
                reached=f"most: {rows[0]['work']}, {rows[0]['share']:.0%}" if rows else "none",
                holds=bool(rows),
            ),
        ),
    )


if __name__ == "__main__":
    main("limit", __doc__, measure)
