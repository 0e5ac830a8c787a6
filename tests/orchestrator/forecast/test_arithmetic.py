"""Host memory and breakdowns against hand calculations and publications."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from orchestrator.forecast.breakdown import Breakdown, breakdown
from orchestrator.forecast.planner import Planner
from orchestrator.forecast.request import planning_request
from orchestrator.forecast.table import ForecastTable, host_bytes, single_plan_table
from search_spaces.hardware.catalogue import known_device
from search_spaces.plan import Plan
from tests.orchestrator.forecast.values import (
    BLOCK,
    DEPTH,
    HIDDEN,
    TOKENS,
    VOCABULARY,
    a_calibration,
    a_footprint,
    a_question,
    a_spec,
    facts,
)
from tests.plans import ddp_plan

PARAMETERS = DEPTH * BLOCK + 2 * VOCABULARY * HIDDEN
H100 = known_device("H100")


def a_plan(**knobs: Any) -> Plan:
    usual = {"zero_stage": 3, "micro_batch": 1, "accumulation": 8, "data": 8, "precision": "bf16"}
    return ddp_plan(**usual | knobs)


def one(plan: Plan) -> ForecastTable:
    return single_plan_table(a_question(), plan, a_footprint, a_calibration())


def test_host_memory_of_zero_offload() -> None:
    """ZeRO-Offload: fp32 weights, two moments and gradients on the host, 16 bytes a parameter."""
    plan = a_plan(engine="deepspeed", zero_stage=2, offload_optimizer="cpu")

    held = host_bytes(one(plan).work)

    assert held[0] == pytest.approx(16 * PARAMETERS / 8)


def test_plans_beyond_the_hosts_memory_are_not_recommended() -> None:
    small = dataclasses.replace(H100, host_memory_bytes=2**30)
    question = a_question(ranks=(1,), device=small)

    told = Planner(question, a_footprint, a_calibration()).plan()

    assert told.recommendation.unhosted > 0
    assert all(best.host_bytes <= 2**30 for best in told.recommendation.best)


def test_matmuls_of_a_step_are_six_flops_a_parameter_and_token() -> None:
    """Forward 2, backward 4 (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""
    told = breakdown(one(a_plan()), 0, a_calibration())

    tokens = 8 * TOKENS  # of one device in a step
    assert _figure(told, "matmul", "work") == pytest.approx(
        6 * (DEPTH * BLOCK + VOCABULARY * HIDDEN) * tokens
    )
    rate = _figure(told, "matmul", "rate")
    seconds = next(term.amount for term in told.time if term.name == "matmul")
    assert rate * seconds == pytest.approx(_figure(told, "matmul", "work"))
    step = told.expected.forecast.step_seconds.value
    assert told.expected.mfu == pytest.approx(_figure(told, "matmul", "work") / step / 989e12)


def _figure(told: Breakdown, term: str, name: str) -> float:
    (found,) = (
        quantity.value
        for one in told.time
        if one.name == term
        for quantity in one.of
        if quantity.name == name
    )
    return found


def test_flash_attention_is_of_the_generations_that_a_gpu_has() -> None:
    volta, ampere, hopper, blackwell = (
        dict(planning_request(a_spec(), facts(), known_device(gpu), ranks=(1,)).lacks)
        for gpu in ("V100-32", "A100", "H100", "B200")
    )
    second = {"flash_attention_2": "flash_attention_2 needs an Ampere or newer GPU"}
    third = {"flash_attention_3": "flash_attention_3 needs a Hopper GPU"}

    assert volta == second | third
    assert ampere == blackwell == third
    assert hopper == {}
