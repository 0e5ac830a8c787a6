"""Plans for a stated peak, on a model worked out by hand: against the forecasts of all mixes."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from orchestrator.forecast.request import PlanningRequest
from orchestrator.forecast.table import ForecastTable, forecast_table, single_plan_table
from search_spaces.costs.block_mix import mix_knobs
from search_spaces.costs.footprint import BlockKind, Footprint
from search_spaces.costs.plan_encoding import VariantKey
from search_spaces.plan import Plan
from search_spaces.rules.registry import refusal
from tests.orchestrator.forecast.values import (
    DEPTH,
    a_calibration,
    a_footprint,
    a_question,
    a_spec,
    facts,
)

NARROW = {"compile": [False], "attention": ["sdpa"], "loss": ["whole"], "zero_stage": [2, 3]}
FEW = 4  # blocks, so that all mixes can be tried


def question(gib: float | None = 40.0, **space: Any) -> PlanningRequest:
    objective = {"headroom": 0.0} | ({} if gib is None else {"memory_gib": gib})
    return a_question(spec=a_spec(objective=objective, space=NARROW | space))


def planned(asked: PlanningRequest) -> ForecastTable:
    return forecast_table(asked, 8, a_footprint, a_calibration())


def is_mix(plan: Plan) -> bool:
    return plan.selective_blocks + plan.offloaded_blocks > 0 or plan.checkpoint_ratio % 0.25 > 0


def best_of(table: ForecastTable, among: Any) -> float:
    return float(table.forecasts.samples_per_second[among & table.keeps_headroom].max())


@pytest.mark.parametrize("gib", [24.0, 30.0, 40.0, 50.0])
def test_the_fastest_plan_within_a_peak_has_a_mix(gib: float) -> None:
    table = planned(question(gib))
    mixes = np.array([is_mix(plan) for plan in table.table])

    assert best_of(table, mixes) > best_of(table, ~mixes)
    assert table.request.line_bytes == gib * 2**30
    context = table.request.rule_context(8)
    assert not [plan for plan in table.table if refusal(plan, context)]
    assert mixes.sum() <= 3 * 64  # the space hardly grows


def test_plans_are_as_before_without_a_stated_peak_or_with_named_ratios() -> None:
    for asked in (question(None), question(checkpoint_ratio=[0.0, 0.25, 0.5, 0.75, 1.0])):
        assert not any(map(is_mix, planned(asked).table))


def test_what_the_specification_leaves_out_is_in_no_mix() -> None:
    table = planned(question(24.0, checkpoint_mode=["full"], checkpoint_offload=[False])).table

    assert any(map(is_mix, table))
    assert not any(plan.selective_blocks or plan.offloaded_blocks for plan in table)


def halves(wanted: tuple[VariantKey, ...]) -> Footprint:
    """Blocks of two kinds, one with twice the tokens, as in an encoder and decoder."""
    whole = replace(a_footprint(wanted), depth=FEW)

    def parts(kind: BlockKind) -> tuple[BlockKind, BlockKind]:
        part = kind.part
        saved, kept, inputs = (
            replace(extent, per_sample=2 * extent.per_sample)
            for extent in (part.saved_bytes, part.kept_bytes, part.input_bytes)
        )
        wide = replace(part, saved_bytes=saved, kept_bytes=kept, input_bytes=inputs)
        one, two = tuple(range(FEW // 2)), tuple(range(FEW // 2, FEW))
        return BlockKind(indices=one, part=part), BlockKind(indices=two, part=wide)

    variants = [replace(each, blocks=parts(each.blocks[0])) for each in whole.variants]
    return replace(whole, variants=tuple(variants))


@pytest.mark.parametrize("pipeline", [1, 2])
def test_no_mix_is_forecast_faster_within_the_peak(pipeline: int) -> None:
    model = facts(blocks=FEW, block_parameters=facts().block_parameters[:FEW])
    knobs = {"pipeline": [pipeline], "micro_batch": [2], "zero_stage": [2], "tensor": [1]}
    knobs |= {"offload_optimizer": ["none"], "offload_parameters": ["none"]}
    knobs |= {"pipeline_schedule": ["1f1b"]}
    asked = replace(question(None, **knobs), model=model)
    fixed = forecast_table(asked, 8, halves, a_calibration())
    peaks = fixed.forecasts.peak_bytes / 2**30
    every = []
    for counts in np.ndindex(*(FEW + 1,) * 4):
        plan = Plan(
            **fixed.table.plan(0).as_dict() | (dict(mix_knobs(counts)) if sum(counts) else {})
        )
        if sum(counts) == FEW and refusal(plan, asked.rule_context(8)) is None:
            every.append(single_plan_table(asked, plan, halves, a_calibration()).forecasts)
    for gib in np.linspace(peaks.min() * 0.9, peaks.max(), 7):
        stated = replace(question(float(gib), **knobs), model=model)
        table = forecast_table(stated, 8, halves, a_calibration())
        within = [one for one in every if one.peak_bytes[0] <= gib * 2**30]
        if within:
            fastest = max(one.samples_per_second[0] for one in within)
            assert best_of(table, True) == pytest.approx(fastest, rel=1e-3), gib
    assert len(every) == 35  # all mixes of four blocks


def test_mixes_are_of_whole_blocks() -> None:
    table = planned(question(30.0))

    for plan in filter(is_mix, table.table):
        count = plan.checkpoint_ratio * DEPTH
        assert count == round(count)
        assert plan.selective_blocks + plan.offloaded_blocks <= count
