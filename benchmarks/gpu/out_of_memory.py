"""Out of memory fifty times in a row on one warm worker, and what that leaves behind.

    python -m benchmarks.gpu.out_of_memory [--out DIR] [--tiny]

A reference plan is measured some times, then plans that cannot fit are tried one after the other,
then the reference plan is measured again. Each must be told with the bytes that it wanted, its
memory must come back (or the worker be replaced, as a sweep would), and the reference plan must be
as fast as before.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.gpu.cases import LLAMA_1B
from benchmarks.gpu.command import Asked, main
from benchmarks.gpu.found import Found
from benchmarks.gpu.lone_group import LoneGroup
from benchmarks.gpu.verdicts import Verdict
from orchestrator.cli.console import print_line
from orchestrator.core.failures import RESIDUAL_FLOOR_BYTES, RESIDUAL_SHARE
from orchestrator.host import gpu_bytes_in_use
from search_spaces.errors import ClusterError
from search_spaces.plan import Plan
from search_spaces.spec.schema import SweepSpec
from search_spaces.trial import Measured, OutOfMemory

TIMES, SHORT_TIMES, TINY_TIMES = 50, 10, 6
REPEATS = 3  # of the reference plan, before and after
LEAST_NOISE = 0.01  # by which two measurements of the same may differ anyway
MOST_NOISE = 0.05  # beyond which nothing can be said of a change
_USUAL, _TINY_USUAL = 16, 4  # samples of an optimizer step of the reference plan
_LARGE, _TINY_LARGE = 512, 32  # of those that run out: their logits alone fit no GPU of today
_SHARE_LEFT = 0.25  # of the time, for the reference plan afterwards
_OBJECTIVE = {"min_steps": 6, "max_steps": 12, "max_seconds": 10.0, "interval": 0.01}


def spec_of(batch: int, *, tiny: bool) -> SweepSpec:
    """The model with so many samples in an optimizer step."""
    objective = {**_OBJECTIVE, "max_seconds": 0.3 if tiny else 10.0}
    spec = LLAMA_1B.spec(tiny=tiny, objective=objective)
    train = spec.train.model_copy(update={"global_batch": batch})
    return spec.model_copy(update={"train": train})


def reference_of(spec: SweepSpec) -> Plan:
    """The plan that is measured before and after: a sample at a time."""
    return _plan(spec, micro_batch=1)


def too_large(spec: SweepSpec) -> tuple[Plan, ...]:
    """Plans that take all samples of a step at once, and differ in what they keep of them."""
    return tuple(
        _plan(spec, micro_batch=spec.train.global_batch, checkpoint_ratio=ratio, optimizer=how)
        for ratio in (0.0, 0.5, 1.0)
        for how in ("adamw_fused", "adamw_foreach")
    )


def _plan(spec: SweepSpec, *, micro_batch: int, **knobs: Any) -> Plan:
    usual: dict[str, Any] = {
        "data": 1,
        "zero_stage": 0,
        "accumulation": spec.train.global_batch // micro_batch,
        "batching": "padded",
        "precision": spec.train.precision,
        "attention": "sdpa",
        "checkpoint_ratio": 0.0,
    }
    return Plan(micro_batch=micro_batch, **(usual | knobs))


def measure(asked: Asked) -> Found:
    """Measures, runs out of memory again and again, and measures once more."""
    usual = spec_of(_TINY_USUAL if asked.tiny else _USUAL, tiny=asked.tiny)
    large = spec_of(_TINY_LARGE if asked.tiny else _LARGE, tiny=asked.tiny)
    plans = too_large(large)
    times = TINY_TIMES if asked.tiny else SHORT_TIMES if asked.short else TIMES
    before = list(_rates(asked.group, usual))
    spare = _SHARE_LEFT * asked.left_seconds
    rows: list[dict[str, Any]] = []
    for number in range(times):
        if not asked.has(spare):
            break
        rows.append(_row(asked.group, large, plans[number % len(plans)], number))
        print_line(f"{number + 1} of {times}: {rows[-1]['outcome']} in {rows[-1]['phase']}")
    return judged(rows, before, list(_rates(asked.group, usual)), wanted=times)


def _rates(group: LoneGroup, spec: SweepSpec) -> Iterator[float]:
    """Samples per second of the reference plan, some times."""
    for number in range(REPEATS):
        outcome = group.measure(spec, reference_of(spec), number=number).outcome
        if not isinstance(outcome, Measured):
            raise ClusterError(f"the reference plan could not be measured: {outcome}")
        yield outcome.samples_per_second.value


def _row(group: LoneGroup, spec: SweepSpec, plan: Plan, number: int) -> dict[str, Any]:
    report = group.measure(spec, plan, number=number)
    outcome = report.outcome
    out = outcome if isinstance(outcome, OutOfMemory) else None
    costs = getattr(outcome, "costs", None)
    return {
        "number": number + 1,
        "outcome": outcome.kind,
        "phase": out and out.phase,
        "wanted_bytes": out and out.wanted_bytes,
        "limit_bytes": out and out.limit_bytes,
        "residual_bytes": costs and costs.residual_bytes,
        "replaced": report.workers_ended,
        "process": group.started,
        "device_used_bytes": sum(gpu_bytes_in_use().values()) or None,
        "seconds": report.ended_at - report.started_at,
        "micro_batch": plan.micro_batch,
        "checkpoint_ratio": plan.checkpoint_ratio,
        "detail": out and out.detail,
    }


def judged(
    rows: Sequence[dict[str, Any]], before: Sequence[float], after: Sequence[float], *, wanted: int
) -> Found:
    """Judges trials that ran out of memory, by the reference plan's samples per second too."""
    out = [row for row in rows if row["outcome"] == "out_of_memory"]
    told = [row for row in out if row["wanted_bytes"] is not None]
    back = [row for row in rows if row["replaced"] or _came_back(row)]
    first, last = statistics.median(before), statistics.median(after)
    noise = max(LEAST_NOISE, max(before) / min(before) - 1, max(after) / min(after) - 1)
    change = last / first - 1
    return Found(
        figures={
            "trials": len(rows),
            "processes": len({row["process"] for row in rows}),
            "replaced": sum(row["replaced"] for row in rows),
            "largest_residual_bytes": max((row["residual_bytes"] or 0 for row in rows), default=0),
            "reference_before": list(before),
            "reference_after": list(after),
            "noise": noise,
            "change": change,
        },
        rows=rows,
        shown=("number", "phase", "wanted_bytes", "residual_bytes", "replaced", "seconds"),
        verdicts=(
            _all("out of memory in a row", out, wanted),
            _all("told with the bytes wanted", told, wanted),
            _all("memory back, or worker replaced", back, wanted),
            Verdict(
                what="reference plan's speed after it",
                asked=f"within ±{noise:.1%}, its noise",
                reached=f"{change:+.1%}",
                holds=abs(change) <= noise if noise <= MOST_NOISE else None,
            ),
        ),
        left="" if len(rows) == wanted else f"{wanted - len(rows)} of {wanted} were not tried",
    )


def _came_back(row: dict[str, Any]) -> bool:
    """Returns whether no more memory stayed behind than a sweep lets pass."""
    residual = row["residual_bytes"]
    share = RESIDUAL_SHARE * (row["limit_bytes"] or 0)
    return residual is not None and residual <= max(RESIDUAL_FLOOR_BYTES, share)


def _all(what: str, rows: Sequence[Any], wanted: int) -> Verdict:
    return Verdict(what=what, asked=str(wanted), reached=str(len(rows)), holds=len(rows) == wanted)


if __name__ == "__main__":
    main("out_of_memory", __doc__, measure)
