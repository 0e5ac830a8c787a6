"""Memory budgets: the best plan on smaller devices, and which knobs it has to change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from orchestrator.forecast.request import PlanningRequest
from orchestrator.forecast.table import ForecastRow, ForecastTable, fastest
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.forecast import forecast
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.workload import workload_of
from search_spaces.plan import Plan
from search_spaces.plan_table import PlanTable

KnobGroup = Literal[
    "parallelism", "micro_batch", "compute", "recomputation", "offload", "other", "all"
]
# In the order in which a user would change them: splitting first, the costliest last
_GROUPS: tuple[tuple[KnobGroup, tuple[str, ...]], ...] = (
    (
        "parallelism",
        ("engine", "tensor", "sequence_parallel", "pipeline", "pipeline_schedule", "data",
         "zero_stage", "replicas"),
    ),
    ("micro_batch", ("micro_batch", "accumulation")),
    ("compute", ("attention", "precision", "compile", "optimizer")),
    ("recomputation", ("checkpoint_ratio", "checkpoint_mode", "checkpoint_offload")),
    ("offload", ("offload_optimizer", "offload_parameters", "pin_memory")),
)  # fmt: skip
_NEGLIGIBLE = 0.02  # share of speed that is worth less than any saving of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobStep:
    """Effect of changing one group of knobs, after the groups before it.

    The group "other" has the knobs of no other group, and "all" has every knob. `saved_bytes` is
    the reduction of the peak, `slowdown` the share by which the step gets longer; either may be
    negative.
    """

    group: KnobGroup
    plan: Plan
    saved_bytes: float
    slowdown: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBudget:
    """The best plan with a memory limit of `limit_bytes` per rank; None if nothing fits.

    `knob_steps` leads to it from the best plan without a limit. `saved_bytes` and `slowdown`
    compare the two: the smaller peak, and the share by which the step is longer.
    """

    limit_bytes: int
    best: ForecastRow | None
    fitting: int
    saved_bytes: float = 0.0
    slowdown: float = 0.0
    knob_steps: tuple[KnobStep, ...] = ()


def memory_budgets(
    question: PlanningRequest, sized: ForecastTable, calibration: Calibration
) -> tuple[MemoryBudget, ...]:
    """Returns the best plan under each memory limit of the request.

    Args:
        question: A request with `memory_sizes`.
        sized: Forecasts of the space for the smallest limit: larger ones leave fewer knobs to
            search.
        calibration: The calibration that the forecasts were made with.
    """
    forecasts = sized.forecasts
    unlimited = _best_without_limit(sized)
    budgets = []
    for limit in sorted(question.memory_sizes):
        limited = sized.limited_to(limit)
        order = fastest(forecasts, limited.keeps_headroom)
        if not len(order):
            budgets.append(MemoryBudget(limit_bytes=limit, best=None, fitting=0))
            continue
        best = int(order[0])
        budgets.append(
            MemoryBudget(
                limit_bytes=limit,
                best=limited.row(best),
                fitting=int(limited.keeps_headroom.sum()),
                saved_bytes=float(forecasts.peak_bytes[unlimited] - forecasts.peak_bytes[best]),
                slowdown=float(
                    forecasts.step_seconds[best] / forecasts.step_seconds[unlimited] - 1
                ),
                knob_steps=_knob_steps(
                    question, sized, calibration, sized.plan(unlimited), sized.plan(best)
                ),
            )
        )
    return tuple(budgets)


def _best_without_limit(table: ForecastTable) -> int:
    """Returns the row with the smallest peak among those about as fast as the fastest."""
    forecasts = table.forecasts
    rates = np.where(table.hosted, forecasts.samples_per_second, 0.0)
    rows = np.flatnonzero(rates >= (1 - _NEGLIGIBLE) * rates.max())
    return int(rows[np.argmin(forecasts.peak_bytes[rows])])


def steps_between(before: Plan, after: Plan) -> Iterator[tuple[KnobGroup, Plan]]:
    """Yields the plans from `before` to `after`, with the group of knobs that each one changes."""
    knobs = before.as_dict()
    for group, names in _GROUPS:
        target = {name: getattr(after, name) for name in names}
        if all(knobs[name] == value for name, value in target.items()):
            continue
        knobs |= target
        yield group, Plan.from_dict(_with_accumulation(knobs, after))
    if knobs != after.as_dict():
        yield "other", after


def _with_accumulation(knobs: dict[str, Any], after: Plan) -> dict[str, Any]:
    # Rounded, since an intermediate plan may miss the global batch
    passes = after.global_batch / (knobs["micro_batch"] * knobs["data"])
    return knobs | {"accumulation": max(round(passes), 1)}


def _knob_steps(
    request: PlanningRequest,
    table: ForecastTable,
    calibration: Calibration,
    before: Plan,
    after: Plan,
) -> tuple[KnobStep, ...]:
    steps = tuple(steps_between(before, after))
    if not steps:
        return ()
    plans = PlanTable.of([before, *(plan for _, plan in steps)])
    traced = {(v.attention, v.compute, v.split) for v in table.footprint.variants}
    # Intermediate plans need not be legal, and only variants of legal plans are traced
    if not set(variants_of(plans)) <= traced:
        plans, steps = PlanTable.of([before, after]), (("all", after),)
    features = plan_features(plans, request.model, table.footprint)
    forecasts = forecast(
        workload_of(table.footprint, request.device, features), calibration, table.limit_bytes
    )
    peaks, rates = forecasts.peak_bytes, forecasts.samples_per_second
    return tuple(
        KnobStep(
            group=group,
            plan=plan,
            saved_bytes=float(peaks[at] - peaks[at + 1]),
            slowdown=float(rates[at] / rates[at + 1] - 1),
        )
        for at, (group, plan) in enumerate(steps)
    )
