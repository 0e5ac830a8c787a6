"""What has to be turned on as devices get smaller, what it saves and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from orchestrator.forecast.request import PlanningRequest
from orchestrator.forecast.table import Expected, ForecastTable, expected, fastest, within_line
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import work_of
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable

# in the order in which one would turn them: what splits first, what costs most last
_GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        "split",
        ("engine", "tensor", "sequence_parallel", "pipeline", "pipeline_schedule", "data",
         "zero_stage", "replicas"),
    ),
    ("micro-batch", ("micro_batch", "accumulation")),
    ("computing", ("attention", "precision", "compile", "optimizer")),
    ("recomputation", ("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload")),
    ("offload", ("offload_optimizer", "offload_parameters", "pin_memory")),
)  # fmt: skip


_ABOUT = 0.02  # share of speed that nobody would give memory for


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobStep:
    """One group of knobs turned, those before it turned already.

    `saved_bytes` is by how much the peak falls, `slowdown` by which share the step gets longer;
    either may be negative.
    """

    group: str
    plan: Plan
    saved_bytes: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The best plan where one rank may hold `limit_bytes`; None where nothing fits.

    `turned` leads to it from the plan that one would take if memory were no matter; `slowdown`
    is by which share its step is longer than that one's, `saved_bytes` by how much its peak is
    smaller.
    """

    limit_bytes: int
    best: Expected | None
    fitting: int
    saved_bytes: float = 0.0
    slowdown: float = 0.0
    turned: tuple[KnobStep, ...] = ()


def memory_budgets(
    question: PlanningRequest, sized: ForecastTable, belief: Calibration
) -> tuple[MemoryBudget, ...]:
    """What is best under each limit of the question.

    Args:
        question: With `memory_budgets`.
        sized: The space of the smallest of them: larger devices leave fewer knobs to search.
        belief: As the forecasts were made.
    """
    told = sized.forecasts
    free = _unhindered(sized)
    found = []
    for limit in sorted(question.memory_sizes):
        line = limit * (1 - question.spec.objective.headroom)
        keeps = sized.hosted & within_line(told, limit, line)
        order = fastest(told, keeps)
        if not len(order):
            found.append(MemoryBudget(limit_bytes=limit, best=None, fitting=0))
            continue
        best = int(order[0])
        found.append(
            MemoryBudget(
                limit_bytes=limit,
                best=replace(expected(sized, best, limit), keeps=True),
                fitting=int(keeps.sum()),
                saved_bytes=float(told.peak_bytes[free] - told.peak_bytes[best]),
                slowdown=float(told.step_seconds[best] / told.step_seconds[free] - 1),
                turned=_turned(question, sized, belief, sized.plan(free), sized.plan(best)),
            )
        )
    return tuple(found)


def _unhindered(sized: ForecastTable) -> int:
    """The plan one would take if memory were no matter.

    Of those about as fast as the fastest it is the one that holds least.
    """
    told = sized.forecasts
    rates = np.where(sized.hosted, told.samples_per_second, 0.0)
    rows = np.flatnonzero(rates >= (1 - _ABOUT) * rates.max())
    return int(rows[np.argmin(told.peak_bytes[rows])])


def steps_between(before: Plan, after: Plan) -> Iterator[tuple[str, Plan]]:
    """Plans on the way from one to the other, a group of knobs at a time; the last is `after`."""
    knobs = before.as_dict()
    for group, names in _GROUPS:
        wanted = {name: getattr(after, name) for name in names}
        if all(knobs[name] == value for name, value in wanted.items()):
            continue
        knobs |= wanted
        yield group, Plan.from_dict(_whole_step(knobs, after))
    if knobs != after.as_dict():
        yield "rest", after


def _whole_step(knobs: dict[str, Any], after: Plan) -> dict[str, Any]:
    """With the accumulation that keeps the global batch, as far as whole numbers can."""
    passes = after.global_batch / (knobs["micro_batch"] * knobs["data"])
    return knobs | {"accumulation": max(round(passes), 1)}


def _turned(
    question: PlanningRequest, sized: ForecastTable, belief: Calibration, before: Plan, after: Plan
) -> tuple[KnobStep, ...]:
    way = tuple(steps_between(before, after))
    if not way:
        return ()
    table = PlanTable.of([before, *(plan for _, plan in way)])
    known = {(v.attention, v.compute, v.split) for v in sized.footprint.variants}
    if not set(variants_of(table)) <= known:  # a plan on the way computes as no legal one does
        table, way = PlanTable.of([before, after]), (("all", after),)
    executions = plan_features(table, question.model, sized.footprint)
    told = forecast(
        work_of(sized.footprint, question.device, executions), belief, sized.limit_bytes
    )
    peaks, rates = told.peak_bytes, told.samples_per_second
    return tuple(
        KnobStep(
            group=group,
            plan=plan,
            saved_bytes=float(peaks[at] - peaks[at + 1]),
            slowdown=float(rates[at] / rates[at + 1] - 1),
        )
        for at, (group, plan) in enumerate(way)
    )
