"""Host memory and breakdowns against hand calculations and publications."""

import dataclasses
import math
import re
from typing import Any

import pytest

from orchestrator.forecast.planner import Planner
from orchestrator.forecast.planning_notes import planning_notes
from orchestrator.forecast.request import planning_request
from orchestrator.forecast.table import ForecastTable, breakdown, single_plan_table
from orchestrator.report.plan_text import answer_sentence, planning_note_words
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


ZERO_2 = {"engine": "deepspeed", "zero_stage": 2}
ZERO_3 = {"engine": "deepspeed", "offload_parameters": "cpu"}
FSDP = {"offload_parameters": "cpu"}
PIN = {"pin_memory": True}


@pytest.mark.parametrize(
    ("knobs", "pageable", "each", "flat"),
    [
        (ZERO_2 | PIN, 8, 2, (4, 4, 2)),  # accumulated gradients; fp32 weights, gradients; bf16
        (ZERO_3 | PIN, 12, 2, (2, 4, 2)),  # weights before they are flattened; gradients twice
        (FSDP | PIN, 8, 4 + 4, ()),  # no master weights
        (ZERO_2, 12 + 4 + 2 + 2, 0, ()),
        (ZERO_3, 12 + 4 + 2, 0, (2,)),  # which DeepSpeed pins always
    ],
)
def test_host_memory_of_offload(
    knobs: dict[str, Any], pageable: float, each: float, flat: tuple[float, ...]
) -> None:
    """Torch rounds pinned memory up: each of many tensors, by 1.25 in all, or a flat buffer."""
    for data in (2, 8, 16):
        plan = a_plan(offload_optimizer="cpu", data=data, accumulation=64 // data, **knobs)
        shard = PARAMETERS / data
        expected = shard * (pageable + 1.25 * each)
        for size in flat:
            # ZeRO-3 makes fp32 gradients of 1e9 parameters at a time
            parts = max(shard / 1e9, 1) if size == 4 and "zero_stage" not in knobs else 1
            expected += parts * 2 ** math.ceil(math.log2(size * shard / parts))

        held = one(plan).forecasts.host_bytes

        assert held[0] == pytest.approx(min(data, 8) * expected)


def test_gradients_of_an_offloaded_update_leave_the_device() -> None:
    """ZeRO-1 alone waits with those of other ranks."""
    zero = {"engine": "deepspeed", "offload_optimizer": "cpu"}
    rows = [one(a_plan(**zero, zero_stage=stage)).row(0) for stage in (1, 2, 3)]

    assert [dict(row.held_bytes)["gradients"] for row in rows] == [2.0 * PARAMETERS, 0.0, 0.0]


@pytest.mark.parametrize(("zero_stage", "cast"), [(2, 4.0 / 2), (3, 6e9 / PARAMETERS)])
def test_deepspeed_casts_gradients_for_its_update(zero_stage: int, cast: float) -> None:
    """ZeRO-2 those of its shard, ZeRO-3 those of 1e9 parameters at a time."""
    plan = a_plan(engine="deepspeed", zero_stage=zero_stage, data=2, accumulation=1, micro_batch=32)
    update = one(plan).work.executions.update_bytes[0] * PARAMETERS / 2

    assert update == pytest.approx(cast * PARAMETERS)


@pytest.mark.parametrize(
    ("knobs", "each"),
    [  # bytes of a parameter: weights, gradients, states
        ({}, (4, 4, 8)),
        ({"states": "bf16"}, (2, 2, 4)),
        ({"states": "bf16_stochastic"}, (2, 2, 4)),
        ({"states": "bf16", "optimizer": "adamw_8bit"}, (2, 2, 2.04)),
        ({"states": "bf16", "optimizer": "adamw_8bit_paged"}, (2, 2, 0)),
        ({"states": "bf16", "zero_stage": 3, "data": 8}, (2 / 8, 2 / 8, 4 / 8)),
        ({"engine": "deepspeed", "zero_stage": 1, "data": 8}, (2, 2, 12 / 8)),
        (
            {"engine": "deepspeed", "zero_stage": 1, "data": 8, "states": "bf16"},
            (2, 2, (4 + 2) / 8),  # moments, and a copy of its part of the weights
        ),
    ],
)
def test_bf16_states_take_two_bytes_each(knobs: dict[str, Any], each: tuple[float, ...]) -> None:
    data = knobs.get("data", 1)
    plan = a_plan(**{"zero_stage": 0, "data": data, "accumulation": 64 // data} | knobs)
    row = one(plan).row(0)

    held = dict(row.held_bytes)
    found = [held[part] / PARAMETERS for part in ("weights", "gradients", "optimizer")]
    assert found == pytest.approx(list(each))


def test_one_rank_has_the_nodes_host_memory() -> None:
    """Its offload takes 122 GiB, more than nine tenths of a device's share."""
    alone = dataclasses.replace(H100, host_memory_bytes=2**37)
    short = alone.in_node(None, 100 * 2**30)
    reports = [
        Planner(a_question(ranks=(1,), device=device), a_footprint, a_calibration()).plan()
        for device in (alone, short)
    ]

    assert reports[0].recommendation.unhosted == 0
    assert reports[1].recommendation.unhosted > 0
    nearest = reports[1].recommendation.nearest
    assert nearest is not None
    assert nearest.forecast.peak_bytes.value < H100.memory_bytes  # host memory alone is lacking
    words = answer_sentence(reports[1])
    assert re.search(r"needs 1\d\d\.\d GiB of host memory per node, which has 100\.0", words)
    assert re.search(r"with a tenth kept free, \d\d\.\d GiB are lacking", words)
    assert "--host-memory" in "".join(map(planning_note_words, reports[1].notes))


@pytest.mark.parametrize(
    ("gpu", "gib", "limit_gib", "words"),
    [
        ("RTX 3060", 24, 11.7, "memory_gib is 24.0, but each RTX 3060 has 11.7 GiB"),
        ("H100", 24, 24.0, "limits each H100-80-SXM to 24.0 of 79.2 GiB"),
        ("H100", None, 79.2, ""),
    ],
)
def test_no_device_is_given_more_memory_than_it_has(
    gpu: str, gib: float | None, limit_gib: float, words: str
) -> None:
    spec = a_spec(cluster={"device": "cuda", "memory_gib": gib})
    request = planning_request(spec, facts(), known_device(gpu), ranks=(8,))

    notes = planning_notes(request, TOKENS, TOKENS, None, offloads=False)

    assert request.limit_bytes / 2**30 == pytest.approx(limit_gib, abs=0.05)
    assert words in "".join(map(planning_note_words, notes))
    assert len(notes) == bool(words)


def test_matmuls_of_a_step_are_six_flops_a_parameter_and_token() -> None:
    """Forward 2, backward 4 (Kaplan et al. 2020, arXiv:2001.08361, section 2.1)."""
    row = breakdown(one(a_plan()), a_calibration()).expected

    work = 6 * (DEPTH * BLOCK + VOCABULARY * HIDDEN) * 8 * TOKENS  # of one device in a step
    assert row.mfu == pytest.approx(work / row.forecast.step_seconds.value / 989e12)


def test_kernels_are_of_the_generations_that_a_gpu_has() -> None:
    volta, ampere, hopper, blackwell = (
        dict(planning_request(a_spec(), facts(), known_device(gpu), ranks=(1,)).lacks)
        for gpu in ("V100-32", "A100", "H100", "B200")
    )
    second = {"flash_attention_2": "flash_attention_2 needs an Ampere or newer GPU"}
    third = {"flash_attention_3": "flash_attention_3 needs a Hopper GPU"}

    eight_bit = {"float8": "float8 needs an Ada, Hopper or newer GPU"}

    assert volta == second | third | eight_bit
    assert ampere == third | eight_bit
    assert blackwell == third
    assert hopper == {}
