"""Plans with the fastest mix of recomputation within `objective.memory_gib`, by forecast."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from orchestrator.core.objective import Objective
from orchestrator.forecast.request import TraceVariants
from search_spaces.costs.block_mix import MIX_KNOBS, WAYS, fastest_mix, mix_knobs
from search_spaces.costs.calibration import Calibration
from search_spaces.costs.memory import moment_bytes
from search_spaces.costs.plan_encoding import plan_features, variants_of
from search_spaces.costs.plan_features import Flags, Numbers
from search_spaces.costs.time import step_terms
from search_spaces.costs.workload import workload_of
from search_spaces.hardware.device import Device
from search_spaces.plan import Plan
from search_spaces.plan_table import KNOB_NAMES, PlanTable
from search_spaces.rules.base import RuleContext
from search_spaces.rules.registry import rule_out
from search_spaces.space import Space, with_plans

_SOLVED = 64  # choices of the other knobs, at most
_SLOWER = 1.1  # than the fastest mix: slower plans get none
_MARGINS = (0.9, 1.0, 1.1)  # of the peak: forecasts of memory are that far off
_TRACE = 1e-9  # share of recomputed blocks with which a backward pass recomputes


def with_mixes(
    space: Space,
    context: RuleContext,
    trace: TraceVariants,
    device: Device,
    calibration: Calibration,
    limit_bytes: float,
) -> Space:
    """Adds plans with the fastest mix of recomputation, unless `space` names `checkpoint_ratio`.

    Their other knobs are those of plans in the space, in the order of speed without recomputation,
    until no mix can make them nearly as fast as the fastest found. Without
    `objective.memory_gib` the space stays as it is.

    Args:
        space: The legal plans.
        context: What made them legal.
        trace: Returns costs of the model.
        device: The device of a rank.
        calibration: Coefficients and scales for the device.
        limit_bytes: Memory limit of a rank.
    """
    spec, blocks = context.spec, context.model.blocks
    if spec.objective.memory_gib is None or spec.space.checkpoint_ratio is not None or not blocks:
        return space
    footprint = trace(variants_of(space.table))
    others = [name for name in KNOB_NAMES if name not in MIX_KNOBS]
    rests = space.table.take(space.table.group(others)[1])
    seconds, held_bytes, allowed = [], [], []
    for table in map(rests.with_knobs, WAYS):
        features = plan_features(table, context.model, footprint)
        recomputed = np.maximum(features.recomputed, _TRACE)
        work = workload_of(footprint, device, replace(features, recomputed=recomputed))
        step = step_terms(work, calibration.time, calibration.time_scales.logarithms)
        moments = moment_bytes(work, calibration.memory)
        scaled = [calibration.memory_scales.scaled(moment).sum(axis=1) for moment in moments]
        seconds.append(step.seconds.sum(axis=1))
        held_bytes.append(np.stack(scaled, axis=1))
        allowed.append(_allowed(table, context))
    usable = Objective.of(spec).usable_bytes(limit_bytes)
    costs = np.stack(seconds, axis=-1), np.stack(held_bytes, axis=-1)
    plans = _solved(rests, *costs, np.stack(allowed, axis=-1), usable, blocks)
    found = PlanTable.of(plan for plan in dict.fromkeys(plans) if plan not in space.table)
    return with_plans(space, found.take(rule_out(found, context).legal)) if len(found) else space


def _allowed(table: PlanTable, context: RuleContext) -> Flags:
    """Marks plans that rules allow, whose values the specification does not leave out."""
    section, legal = context.spec.space, rule_out(table, context).legal
    for name in ("checkpoint_mode", "checkpoint_offload"):
        named, value = getattr(section, name), table.values[name][0]
        if named is not None and value not in named:
            legal = legal & table.is_value("checkpoint_ratio", 0.0)
    if context.cluster.device == "cpu":  # whose memory is the host's
        legal = legal & ~table.is_value("checkpoint_offload", value=True)
    return legal


def _solved(
    rests: PlanTable,
    seconds: Numbers,
    held_bytes: Numbers,
    allowed: Flags,
    usable: float,
    blocks: int,
) -> Iterator[Plan]:
    least = np.where(allowed, seconds, np.inf).min(axis=1)
    fastest = np.inf
    for row in np.argsort(least, kind="stable")[:_SOLVED]:
        if least[row] > _SLOWER * fastest or not np.isfinite(least[row]):
            return
        costs = seconds[row], held_bytes[row]
        for margin in _MARGINS:
            counts = fastest_mix(*costs, margin * usable, blocks, allowed[row])
            if counts is None:
                continue
            if margin == 1.0:
                fastest = min(fastest, float(seconds[row] @ counts) / blocks)
            yield Plan(**{**rests.plan(int(row)).as_dict(), **mix_knobs(counts)})
