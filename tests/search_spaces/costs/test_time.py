"""`time`: seconds by term, compared with manual calculations and published numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from search_spaces.costs.coefficients import TimeCoefficients
from search_spaces.costs.footprint import Extent, FusedAttention, Variant
from search_spaces.costs.time import SCALES, TERMS, step_terms
from search_spaces.hardware.catalogue import known_device
from search_spaces.hardware.device import BlockLaunches
from tests.search_spaces.costs.values import (
    BLOCKS,
    DEVICE,
    EXPERT_WEIGHTS,
    FOOTPRINT,
    WEIGHTS,
    a_plan,
    work,
)

# an ideal world: every rate is the data sheet's and nothing waits
IDEAL = TimeCoefficients(
    matmul_share=1,
    power_half=1e-12,
    wave_half=1e-12,
    inner_half=1e-12,
    traffic_share=1,
    launch=1e-12,
    gap=1e-12,
    exchange_share=1,
    exchange_seconds=1e-15,
    gather_share=1,
    network_share=1,
    collective_seconds=1e-15,
    exposed=1,
    hook_seconds=1e-15,
    recompute_seconds=1e-15,
    bubble=1,
    hop_share=1,
    update_share=1,
    pcie_share=1,
    host_update_share=1,
    step_seconds=1e-15,
    pass_seconds=1e-15,
    rank_seconds=1e-15,
    node_jitter=1e-15,
)
TOKENS, WIDTH = 1024, 1024


def terms(*plans: object) -> dict[str, np.ndarray]:
    found = step_terms(work(*plans), IDEAL).seconds  # type: ignore[arg-type]
    return dict(zip(TERMS, found.T, strict=True))


def matmul_seconds(samples: int) -> float:
    """Seconds of one pass: the slower of compute and memory."""
    rows = samples * TOKENS
    flops = 2 * rows * WIDTH * WIDTH / DEVICE.bf16_flops_per_second
    moved = 2 * (2 * rows * WIDTH + WIDTH * WIDTH) / DEVICE.bandwidth_bytes_per_second
    return max(flops, moved)


def test_matmuls_run_at_the_roofline() -> None:
    (seconds,) = terms(a_plan(micro_batch=2, accumulation=4))["matmul"]

    passes = 3 * (BLOCKS + 2)  # forward, and two matmuls backward, of blocks and both ends
    assert seconds == pytest.approx(4 * passes * matmul_seconds(2), rel=1e-6)


def test_recomputation_runs_forward_once_more() -> None:
    none, full, selective = terms(
        a_plan(),
        a_plan(checkpoint_ratio=1.0),
        a_plan(checkpoint_ratio=1.0, checkpoint_mode="selective"),
    )["matmul"]

    assert full / none == pytest.approx((4 * BLOCKS + 6) / (3 * BLOCKS + 6))
    assert selective == none  # what is kept of a block are its matmuls


def test_other_operators_move_their_bytes() -> None:
    (seconds,) = terms(a_plan(micro_batch=2, accumulation=4))["operators"]

    moved = 4 * 2 * (BLOCKS + 2) * 2 * 4 * 2**20
    assert seconds == pytest.approx(moved / DEVICE.bandwidth_bytes_per_second, rel=1e-6)


def test_a_ring_moves_twice_the_gradients() -> None:
    found = terms(a_plan(data=8, accumulation=1))["data_collectives"]

    gradients = 4.0 * (BLOCKS * 1_000_000 + 1_000_000)
    ring = 2 * 7 / 8 * gradients / DEVICE.link_bytes_per_second
    assert found[0] == pytest.approx(ring, rel=1e-6)


def test_zero_3_gathers_twice_and_scatters_once_in_each_pass() -> None:
    once, twice = terms(
        a_plan(data=8, zero_stage=3, accumulation=1), a_plan(data=8, zero_stage=3, accumulation=2)
    )["data_collectives"]

    weights = BLOCKS * 1_000_000 + 1_000_000
    moved = (2 * 2.0 + 4.0) * weights * 7 / 8  # bf16 weights twice, fp32 gradients once
    assert once == pytest.approx(moved / DEVICE.link_bytes_per_second, rel=1e-6)
    assert twice == pytest.approx(2 * once, rel=1e-6)


def test_ranks_of_several_nodes_share_the_network() -> None:
    inside, across = terms(a_plan(data=8, accumulation=1), a_plan(data=64, accumulation=1))[
        "data_collectives"
    ]

    node = 8 * DEVICE.network_bytes_per_second
    slower = DEVICE.link_bytes_per_second / min(node, DEVICE.link_bytes_per_second)
    assert across / inside == pytest.approx(slower * (63 / 64) / (7 / 8), rel=1e-6)


def test_the_bubble_is_that_of_the_papers() -> None:
    """Narayanan et al. 2021, arXiv:2104.04473, section 2.2: (p - 1) / m, over v if interleaved."""
    micro = {"micro_batch": 1, "accumulation": 8, "pipeline": 4}
    found = terms(a_plan(**micro), a_plan(**micro, pipeline_schedule="interleaved"))
    computing = sum(found[name] for name in TERMS[:5])
    share = found["pipeline_bubble"] / computing

    # two of ten parts are ends, so that stages are not quite alike
    assert share[0] == pytest.approx(3 / 8, rel=0.25)
    assert found["pipeline_bubble"][1] == pytest.approx(found["pipeline_bubble"][0] / 2, rel=0.3)


@pytest.mark.parametrize("schedule", ["interleaved_zero_bubble", "zbv", "dualpipev"])
def test_without_bubbles_a_sixth_of_it_is_left(schedule: str) -> None:
    """Qi et al. 2023, arXiv:2401.10241, with passes of equal length; two stages on a rank."""
    micro = {"micro_batch": 1, "accumulation": 8, "pipeline": 4, "data": 1}
    plain, left = terms(a_plan(**micro), a_plan(**micro, pipeline_schedule=schedule))[
        "pipeline_bubble"
    ]

    assert left == pytest.approx(plain / 6, rel=0.4)  # stages are not quite alike


def test_weights_that_a_node_keeps_come_from_the_node() -> None:
    """Forward gathers over 64 ranks all the same, backward over the 8 of a node."""
    shape = {"data": 64, "zero_stage": 3, "accumulation": 1}
    all_, node = terms(a_plan(**shape), a_plan(**shape, reshard_ranks=8))["data_collectives"]

    weights = BLOCKS * 1_000_000 + 1_000_000
    network = min(8 * DEVICE.network_bytes_per_second, DEVICE.link_bytes_per_second)
    saved = 2.0 * weights * (63 / 64 / network - 7 / 8 / DEVICE.link_bytes_per_second)
    assert all_ - node == pytest.approx(saved, rel=1e-6)


def test_expert_ranks_gather_few_experts_and_send_tokens() -> None:
    """Four of eight ranks divide the experts, so that each has two ranks with the same ones."""
    shape = {"data": 8, "zero_stage": 3, "micro_batch": 2, "accumulation": 1, "experts": 4}
    kept, recomputed = terms(a_plan(**shape), a_plan(**shape, checkpoint_ratio=1.0))[
        "data_collectives"
    ]

    experts = BLOCKS * EXPERT_WEIGHTS
    shared = (WEIGHTS - experts) * 7 / 8 + experts / 4 * 1 / 2
    gathers = (2 * 2.0 + 4.0) * shared  # bf16 weights twice, fp32 gradients once
    hidden = 2 * 2 * 2**20  # of two samples
    sent = BLOCKS * 2 * hidden * 3 / 4  # to two experts, of which a quarter is here
    assert kept == pytest.approx((gathers + 4 * sent) / DEVICE.link_bytes_per_second, rel=1e-6)
    again = 2 * sent / DEVICE.link_bytes_per_second
    assert recomputed - kept == pytest.approx(again, rel=1e-6)


def test_context_ranks_compute_their_tokens_and_send_hidden_states() -> None:
    """Four ranks have a quarter of each sample, and exchange four hidden states in a pass."""
    alone, divided = (
        terms(a_plan(micro_batch=2, accumulation=1, data=data, context=data)) for data in (1, 4)
    )

    link = DEVICE.link_bytes_per_second
    hidden = 2 * 2 * 2**20 / 4
    sent = 2 * BLOCKS * 4 * hidden * 3 / 4  # forward and backward
    ring = 2 * 3 / 4 * 4.0 * WEIGHTS
    assert divided["data_collectives"][0] == pytest.approx((ring + sent) / link, rel=1e-6)
    assert divided["operators"][0] == pytest.approx(alone["operators"][0] / 4)


def test_a_step_gathers_weights_as_often_as_fsdp2_does() -> None:
    """Stage 2 once, stage 3 twice in each of four passes, and once more than there are passes."""
    plans = [
        a_plan(data=8, accumulation=4, offload_optimizer="cpu", offload_parameters="cpu", **knobs)
        for knobs in (
            {"zero_stage": 2},
            {"zero_stage": 3},
            {"zero_stage": 3, "gathered_between_passes": True},
        )
    ]
    weights = BLOCKS * 1_000_000 + 1_000_000
    for name, gather in (
        ("data_collectives", 2.0 * weights * 7 / 8 / DEVICE.link_bytes_per_second),
        ("offload", 4.0 * weights / 8 / DEVICE.pcie_bytes_per_second),
    ):
        once, always, kept = terms(*plans)[name]
        assert always - once == pytest.approx(7 * gather, rel=1e-6)
        assert kept - once == pytest.approx(4 * gather, rel=1e-6)


def test_tensor_ranks_split_matmuls_and_talk() -> None:
    alone, four = (terms(a_plan(tensor=t)) for t in (1, 4))

    assert alone["tensor_collectives"][0] == 0
    moved = 4 * (BLOCKS + 2) * 2 * 2 * 2 * 2**20  # micro-batches, parts, passes, samples, bytes
    ring = 2 * 3 / 4 * moved / DEVICE.link_bytes_per_second
    assert four["tensor_collectives"][0] == pytest.approx(ring, rel=1e-6)
    assert four["matmul"][0] < alone["matmul"][0] / 2


def test_an_offloaded_update_goes_over_the_bus() -> None:
    here, away = terms(
        a_plan(engine="deepspeed", zero_stage=2),
        a_plan(engine="deepspeed", zero_stage=2, offload_optimizer="cpu"),
    )["offload"]

    assert here == 0
    weights = BLOCKS * 1_000_000 + 1_000_000
    assert away > 4.0 * weights / DEVICE.pcie_bytes_per_second  # gradients down, weights up


def test_deepspeed_waits_for_its_hooks_where_gradients_are_split() -> None:
    by = replace(IDEAL, hook_seconds=0.01)
    at = TERMS.index("data_collectives")
    plans = [a_plan(engine="deepspeed", zero_stage=stage, data=8) for stage in (1, 2)]
    (without, hooked), (_, ideal) = (
        step_terms(work(*plans), with_hooks).seconds[:, at] for with_hooks in (by, IDEAL)
    )

    assert hooked - ideal == pytest.approx(0.01 * BLOCKS * 4, rel=1e-6)
    assert without < 0.01


def test_measured_rates_are_taken_as_they_are() -> None:
    by = replace(IDEAL, update_share=0.5)
    sheet, measured = (
        step_terms(work(a_plan(), device=replace(DEVICE, measured=is_measured)), by)
        for is_measured in (False, True)
    )

    at = TERMS.index("optimizer")
    assert sheet.seconds[0, at] == pytest.approx(2 * measured.seconds[0, at])


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("micro_batch", [1, 8])
def test_slopes_are_derivatives_and_add_up_to_the_step(compiled: bool, micro_batch: int) -> None:
    """Compares with finite differences; one micro-batch is limited by the host, one is not."""
    slow = replace(DEVICE, launch_seconds=2e-5)
    found = work(a_plan(micro_batch=micro_batch, compile=compiled, data=1), device=slow)
    scales = np.linspace(-0.3, 0.3, len(SCALES))
    step = step_terms(found, IDEAL, scales)

    assert step.slopes.sum() == pytest.approx(step.seconds.sum())
    for at in range(len(SCALES)):
        moved = scales + 1e-6 * (np.arange(len(SCALES)) == at)
        more = step_terms(found, IDEAL, moved).seconds.sum() - step.seconds.sum()
        assert more / 1e-6 == pytest.approx(step.slopes[0, at], rel=1e-3, abs=1e-8)


@pytest.mark.parametrize(("name", "factor"), [("A100-80GB", 1.0), ("cpu", 2.0)])
@pytest.mark.parametrize(
    ("knobs", "launches"),
    [
        ({}, 30 * (BLOCKS + 2) * 1.0),
        ({"compile": True}, 30 * (BLOCKS * 0.25 + 2 * 1.0)),
        (
            {"checkpoint_ratio": 1.0, "checkpoint_mode": "selective"},
            30 * (BLOCKS + 2) * 1.0 + 5 * BLOCKS * 4.0,
        ),
    ],
)
def test_a_block_that_was_measured_says_what_launches_take(
    name: str, factor: float, knobs: dict[str, Any], launches: float
) -> None:
    """Ten operators forward and twenty backward in each part; embedding and head stay eager."""
    measured = BlockLaunches(
        block_launch_seconds=1.0, recomputed_launch_seconds=4.0, compiled_launch_seconds=0.25
    )
    device = known_device(name).with_launches(measured)
    by = replace(IDEAL, host_block=2.0, recomputed_launch=4.0, compiled_launch=0.25)  # of a CPU
    step = step_terms(work(a_plan(**knobs), device=device), by).seconds.sum()

    assert step == pytest.approx(4 * launches * factor, rel=0.01)


def test_a_gpus_compiled_launches_do_not_follow_from_its_eager_ones() -> None:
    """The start of a sweep measures no compiled block; embedding and head are eager."""
    device = replace(DEVICE, block_launch_seconds=1.0)
    step = step_terms(work(a_plan(compile=True), device=device), IDEAL).seconds.sum()

    assert step == pytest.approx(4 * 60 * 1.0, rel=0.01)


def test_a_cpu_launches_and_works_in_turn() -> None:
    cpu = known_device("cpu")
    by = replace(IDEAL, host_launch=3.0)
    found = step_terms(work(a_plan(), device=cpu), by).seconds[0, TERMS.index("launches")]

    # ten operators forward and twenty backward in each part, in four micro-batches
    assert found == pytest.approx(3 * 4 * 30 * (BLOCKS + 2) * cpu.launch_seconds)


def test_tokens_cut_the_longest_samples_apart_in_more_passes() -> None:
    """A quarter of 64 samples are long: they come in fours, with fewer tokens of padding."""
    varied = {"varied": True, "lengths": (64, 64, 64, 1024), "row_tokens": 1024, "tokens": 1024}
    layout = {"data": 8, "zero_stage": 3, "batching": "grouped", "micro_batch": 8}
    plans = [a_plan(accumulation=1, **layout, micro_batch_tokens=limit) for limit in (0, 4096)]
    found = work(*plans, footprint=replace(FOOTPRINT, **varied))

    step = step_terms(found, IDEAL).seconds
    whole, cut = step[:, TERMS.index("matmul")]
    once, often = step[:, TERMS.index("data_collectives")]

    assert 0.75 * whole < cut < whole
    assert 1.5 < often / once == pytest.approx(found.executions.accumulation[1], rel=1e-6)


@pytest.mark.parametrize(
    ("lengths", "knobs", "share"),
    # of 16 samples 8 are long on average, the others fill 2.375 rows of four: not all are full
    [((256, 1024), {"batching": "packed"}, 10.375 / 16), ((96,), {"pad_multiple": 128}, 4 / 3)],
)
def test_what_stages_and_the_host_are_handed_follows_the_rows(
    lengths: tuple[int, ...], knobs: dict[str, Any], share: float
) -> None:
    """Has both plans in one table; each has its own fill ratio for the same micro-batch."""
    varied = {"varied": True, "lengths": lengths, "row_tokens": 1024, "tokens": lengths[-1]}
    layout = {"micro_batch": 16, "accumulation": 1, "checkpoint_ratio": 1.0, "pipeline": 2}
    plans = [a_plan(checkpoint_offload=True, **layout, **changed) for changed in ({}, knobs)]

    found = step_terms(work(*plans, footprint=replace(FOOTPRINT, **varied)), IDEAL).seconds
    matmul, hops, offload = (
        found[:, TERMS.index(name)] for name in ("matmul", "pipeline_hops", "offload")
    )

    assert matmul[1] / matmul[0] == pytest.approx(share, rel=0.03)
    assert hops[1] / hops[0] == pytest.approx(share, rel=0.03)
    assert offload[1] / offload[0] == pytest.approx(share, rel=0.03)


def test_attention_is_torchs_own_under_both_engines() -> None:
    """4 FLOPs in forward, 10 in backward for each head, query, key and element, half if causal."""
    call = FusedAttention(
        heads=Extent(per_sample=8),
        queries=Extent(fixed=TOKENS),
        keys=Extent(fixed=TOKENS),
        head_size=64,
        causal=True,
        element_bytes=2,
    )
    hopper = known_device("H100")
    plans = [a_plan(engine=engine, data=2) for engine in ("torch", "deepspeed")]
    calls = replace(FOOTPRINT, variants=tuple(map(_with_attention(call), FOOTPRINT.variants)))
    ideal = replace(IDEAL, attention_share=1, attention_backward=1, sequence_half=1e-12)

    found = step_terms(work(*plans, footprint=calls, device=hopper), ideal).seconds

    flops = 14 * 0.5 * 2 * 8 * TOKENS**2 * 64 * BLOCKS * plans[0].accumulation
    seconds = flops / hopper.bf16_flops_per_second / ideal.cudnn_attention
    assert found[:, TERMS.index("attention")] == pytest.approx([seconds, seconds])


def _with_attention(call: FusedAttention) -> Callable[[Variant], Variant]:
    def changed(variant: Variant) -> Variant:
        (kind,) = variant.blocks
        forward, backward = (
            replace(one, attentions=(call,)) for one in (kind.part.forward, kind.part.backward)
        )
        part = replace(kind.part, forward=forward, backward=backward)
        return replace(variant, blocks=(replace(kind, part=part),))

    return changed
