"""Overhead of a trial beyond its work, for a model of a billion parameters: warm, and cold.

    python -m benchmarks.gpu.overhead [--out DIR] [--tiny]

From plan to result, less the building of the model and its steps. Warm: the next trial of a worker
that is up. Cold: a worker that is started for it. Both without Ray; where Ray is installed, the
same of a sweep's own groups and of a `TorchTrainer` for each trial (`benchmarks.trial_overhead`).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import trial_overhead
from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.choosing import balanced, space_of
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.verdicts import Verdict
from orchestrator.core.inputs import TrialFinished
from orchestrator.report.labels import plan_words
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured

WARM, COLD = 8, 3
TINY_WARM, TINY_COLD = 3, 1
_SPACE = {"engine": ["torch"], "micro_batch": [1, 2], "checkpoint_ratio": [0.0, 1.0]}
_OBJECTIVE = {"min_steps": 6, "max_steps": 6, "max_seconds": 5.0, "interval": 0.1}
_RAY_SECONDS = 240.0  # of some warm and cold trials under Ray, its own start included


def spec_of(*, tiny: bool) -> SweepSpec:
    """A few plans that fit any GPU of 24 GiB and more."""
    space: dict[str, Any] = {**_SPACE, "attention": ["sdpa"], "optimizer": ["adamw_fused"]}
    return LLAMA_1B.spec(tiny=tiny, space=space | {"compile": [False]}, objective=_OBJECTIVE)


def measure(asked: Asked) -> Found:
    """Runs trials warm, then cold, then both under Ray if that is there."""
    spec = spec_of(tiny=asked.tiny)
    warm, cold = (TINY_WARM, TINY_COLD) if asked.tiny else (WARM, COLD)
    plans = balanced(space_of(spec, asked.group.here(spec)).table, warm, 0)
    asked.group.measure(spec, plans[0])  # in which a process and its device get ready
    rows = [_row("warm worker", asked, spec, plans[at % len(plans)]) for at in range(warm)]
    for number in range(cold):
        asked.group.stop()
        rows.append(_row("cold worker", asked, spec, plans[number % len(plans)]))
    asked.group.stop()
    return judged(rows, _under_ray(asked, spec), wanted=warm + cold)


def _row(way: str, asked: Asked, spec: SweepSpec, plan: Plan) -> dict[str, Any]:
    return row_of(way, plan, asked.group.measure(spec, plan))


def row_of(way: str, plan: Plan, report: TrialFinished) -> dict[str, Any]:
    """Seconds of a trial, from its plan to its result."""
    seconds, outcome = report.ended_at - report.started_at, report.outcome
    told: dict[str, Any] = {"way": way, "plan": plan_words(plan), "outcome": outcome.kind}
    if isinstance(outcome, Measured):
        told |= {
            "seconds": seconds,
            "worker_seconds": report.workers_seconds,
            "build_seconds": outcome.costs.build_seconds,
            "steps_seconds": outcome.costs.steps_seconds,
            "overhead_seconds": trial_overhead.overhead(seconds, outcome),
        }
    return told


def _under_ray(asked: Asked, spec: SweepSpec) -> Sequence[Mapping[str, Any]]:
    """The ways of `benchmarks.trial_overhead`; none without Ray, or where time is short."""
    if not (asked.ray and asked.has(_RAY_SECONDS)):
        return ()
    warm = TINY_WARM if asked.tiny else WARM
    told: Sequence[Mapping[str, Any]] = trial_overhead.measure(warm, 1, spec=spec)["ways"]
    return told


def judged(
    rows: Sequence[dict[str, Any]], rays: Sequence[Mapping[str, Any]], *, wanted: int
) -> Found:
    """Medians of each way; `rays` are those under Ray, as `benchmarks.trial_overhead` has them."""
    ways = {
        way: _way([row for row in rows if row["way"] == way])
        for way in ("warm worker", "cold worker")
    }
    warm, cold = (ways[way]["overhead_seconds"] for way in ("warm worker", "cold worker"))
    measured = sum(row["outcome"] == "measured" for row in rows)
    return Found(
        figures={
            "ways": ways,
            "under_ray": list(rays),
            "cold_over_warm": cold / warm if warm and cold else None,
        },
        rows=rows,
        shown=("way", "seconds", "worker_seconds", "build_seconds", "overhead_seconds"),
        verdicts=(
            Verdict(
                what="trials measured",
                asked=str(wanted),
                reached=str(measured),
                holds=measured == wanted,
            ),
            Verdict(
                what="overhead, warm below cold",
                asked=f"below {cold:.3g} s" if cold else "below cold",
                reached=f"{warm:.3g} s" if warm else None,
                holds=warm < cold if warm and cold else None,
            ),
        ),
    )


def _way(rows: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Median seconds of one way of running trials."""
    names = ("seconds", "worker_seconds", "build_seconds", "steps_seconds", "overhead_seconds")
    told = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {name: statistics.median(found) if found else None for name, found in told.items()}


if __name__ == "__main__":
    main("overhead", __doc__, measure)
