"""`memory`: bytes by category, compared with the ZeRO paper and with manual calculations."""

from dataclasses import replace
from typing import Any

import pytest

from search_spaces.costs.footprint import BlockKind, Extent, Footprint, Part
from search_spaces.costs.memory import CATEGORIES, MemoryCoefficients, peak_bytes
from search_spaces.costs.stages import STAGES
from search_spaces.plan import Plan
from tests.search_spaces.costs.values import (
    BLOCK_WEIGHTS,
    BLOCKS,
    END_WEIGHTS,
    EXPERT_WEIGHTS,
    FOOTPRINT,
    MIB,
    WEIGHTS,
    a_plan,
    work,
)

NOTHING = MemoryCoefficients(
    fragmentation=1e-12, varied=1e-12, library_bytes=1e-9, workspace_bytes=1e-9
)


def held(plan: Plan, footprint: Footprint = FOOTPRINT) -> dict[str, float]:
    found = peak_bytes(work(plan, footprint=footprint), NOTHING).bytes[0]
    return dict(zip(CATEGORIES, found.tolist(), strict=True))


@pytest.mark.parametrize(("stage", "published_gb"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_states_are_those_of_the_zero_paper(stage: int, published_gb: float) -> None:
    """Rajbhandari et al. 2020, arXiv:1910.02054, figure 1: 7.5 B weights, 64 ranks, K = 12."""
    only_weights = Part(trained=Extent(fixed=7.5e9))
    variants = tuple(
        replace(
            variant,
            embedding=Part(trained=Extent()),
            blocks=(BlockKind(indices=(0,), part=only_weights),),
            head=Part(trained=Extent()),
        )
        for variant in FOOTPRINT.variants
    )
    plan = a_plan(engine="deepspeed", zero_stage=stage, data=64)
    found = held(plan, replace(FOOTPRINT, depth=1, variants=variants))
    states = found["weights"] + found["gradients"] + found["optimizer"]

    # DeepSpeed without ZeRO keeps gradients in fp32, the paper's K counts them in 16 bits
    gradients = 2 * 7.5 if stage == 0 else 0.0
    assert states / 1e9 - gradients == pytest.approx(published_gb, abs=0.05)


def test_a_single_rank_holds_sixteen_bytes_a_weight() -> None:
    found = held(a_plan(accumulation=4))

    assert found["weights"] == 4 * WEIGHTS
    assert found["gradients"] == 4 * WEIGHTS  # there from the second micro-batch on
    assert found["optimizer"] == 8 * WEIGHTS


def test_activations_are_those_of_all_parts_at_the_end_of_forward() -> None:
    found = held(a_plan(micro_batch=16))

    assert found["activations"] == 16 * (BLOCKS + 2) * 10 * MIB
    assert found["temporaries"] == pytest.approx(16 * 3 * MIB, abs=1)
    plans = (a_plan(micro_batch=16, pad_multiple=multiple) for multiple in (1, 128))
    peaks = peak_bytes(work(*plans, footprint=replace(FOOTPRINT, tokens=96)), NOTHING).bytes
    exact, rounded = peaks[:, CATEGORIES.index("activations")].tolist()
    assert rounded == pytest.approx(exact * 128 / 96)


def test_tokens_limit_the_activations_to_those_of_fewer_long_samples() -> None:
    varied = replace(FOOTPRINT, varied=True, tokens=1024, lengths=(64, 64, 1024), row_tokens=1024)
    limited = a_plan(micro_batch=16, accumulation=2, micro_batch_tokens=4 * 1024)
    found = held(replace(limited, batching="grouped"), varied)

    assert found["activations"] == pytest.approx(4 * (BLOCKS + 2) * 10 * MIB)
    assert found["gradients"] == 4 * WEIGHTS
    one = held(a_plan(micro_batch=16, accumulation=1, micro_batch_tokens=4 * 1024), varied)
    assert one["gradients"] == 4 * WEIGHTS  # its step has several passes, of 16 samples in all


def test_recomputation_keeps_inputs_and_one_block() -> None:
    full = held(a_plan(micro_batch=16, checkpoint_ratio=1.0))
    selective = held(a_plan(micro_batch=16, checkpoint_ratio=1.0, checkpoint_mode="selective"))

    # at the end of forward: inputs of all blocks and both ends; in backward a block more, less
    # the head
    assert full["activations"] == 16 * (BLOCKS * 2 + 10 + 10) * MIB
    assert selective["activations"] == 16 * (BLOCKS * 6 + 10 + 10) * MIB


def test_offloaded_inputs_leave_the_device() -> None:
    found = held(a_plan(micro_batch=16, checkpoint_ratio=1.0, checkpoint_offload=True))

    assert found["activations"] == 16 * (10 + 10) * MIB


def test_fsdp_gathers_the_ends_and_two_blocks() -> None:
    plan = a_plan(data=4, zero_stage=3, micro_batch=1, accumulation=1, checkpoint_ratio=1.0)
    found = held(plan)

    assert found["weights"] == 4 * WEIGHTS / 4
    assert found["optimizer"] == 8 * WEIGHTS / 4
    most = 2 * (2 * BLOCK_WEIGHTS + 2 * END_WEIGHTS) + (2 + 4) * BLOCK_WEIGHTS
    assert 0 < found["gathered"] <= most


def test_expert_ranks_gather_a_part_of_the_experts() -> None:
    plan = a_plan(data=8, zero_stage=3, micro_batch=1, accumulation=1, checkpoint_ratio=1.0)
    alone, divided = held(plan), held(replace(plan, experts=4))

    # two blocks in bf16, and a block's gradients in both
    absent = EXPERT_WEIGHTS * 3 / 4
    assert alone["gathered"] - divided["gathered"] == pytest.approx((2 * 2 + 2 + 4) * absent)
    states = ("weights", "gradients", "optimizer")
    assert [alone[name] for name in states] == [divided[name] for name in states]


def test_context_ranks_hold_the_activations_of_their_tokens() -> None:
    alone, divided = (
        held(a_plan(data=4, zero_stage=3, micro_batch=4, accumulation=1, context=ranks))
        for ranks in (1, 4)
    )

    assert divided["activations"] == pytest.approx(alone["activations"] / 4)
    assert divided["weights"] == alone["weights"]


def test_fsdp_holds_the_blocks_that_it_gathers_ahead() -> None:
    def buffers(**knobs: Any) -> float:
        return held(a_plan(data=4, micro_batch=1, accumulation=1, **knobs))["buffers"]

    block = 2 * BLOCK_WEIGHTS  # in bf16
    ahead = [buffers(zero_stage=3, prefetch_blocks=count) for count in (0, 1, 2, 4, BLOCKS)]

    assert ahead == [0, 0, block, 3 * block, (BLOCKS - 2) * block]  # one block is always ahead
    assert buffers(zero_stage=3, prefetch_blocks=4, tensor=2) == 3 * block / 2
    assert buffers(zero_stage=3, prefetch_blocks=4, pipeline=2) == 2 * block  # 4 of 8, one in use
    assert buffers(zero_stage=2, prefetch_blocks=4) == 0  # all are gathered


def test_fsdp_holds_what_some_ranks_keep_until_backward() -> None:
    def gathered(**knobs: Any) -> float:
        return held(a_plan(data=8, micro_batch=1, accumulation=1, **knobs))["gathered"]

    blocks = 2 * BLOCKS * BLOCK_WEIGHTS  # in bf16
    freed = gathered(zero_stage=3)
    assert gathered(zero_stage=3, reshard_ranks=4) == freed + blocks / 4
    assert gathered(zero_stage=3, reshard_ranks=2) == freed + blocks / 2


def test_weights_gathered_between_passes_meet_no_activations_but_a_blocks() -> None:
    def added(**knobs: Any) -> float:
        plan = a_plan(data=4, zero_stage=3, micro_batch=1, **knobs)
        kept = held(replace(plan, gathered_between_passes=True))
        return sum(kept.values()) - sum(held(plan).values())

    few = {"checkpoint_ratio": 1.0, "checkpoint_offload": True}
    block = 2 * BLOCK_WEIGHTS  # in bf16; two are gathered in any case
    assert added(**few) == pytest.approx((BLOCKS - 2) * block)
    assert added(**few, pipeline=2) == pytest.approx((BLOCKS / 2 - 2) * block)
    assert added() == 0  # less than the activations of all blocks


def test_the_first_stage_holds_most_micro_batches() -> None:
    """1F1B holds as many as there are stages (Narayanan et al. 2021), GPipe all."""
    first = work(a_plan(pipeline=4, micro_batch=16, accumulation=8))
    gpipe = work(a_plan(pipeline=4, micro_batch=16, accumulation=8, pipeline_schedule="gpipe"))
    one, all_ = peak_bytes(first, NOTHING), peak_bytes(gpipe, NOTHING)

    assert STAGES[int(one.stage[0])] == "first"
    blocks = first.executions.first_blocks[0]
    at = CATEGORIES.index("activations")
    assert one.bytes[0, at] == 4 * 16 * (blocks + 1) * 10 * MIB
    assert all_.bytes[0, at] == 2 * one.bytes[0, at]


def test_without_bubbles_every_rank_holds_as_many_micro_batches() -> None:
    """One for each rank of the pipeline, and half a one more under DualPipeV."""
    shape = {"pipeline": 4, "micro_batch": 16, "accumulation": 8, "data": 1}
    at = CATEGORIES.index("activations")

    def activations(schedule: str) -> float:
        found = peak_bytes(work(a_plan(**shape, pipeline_schedule=schedule)), NOTHING)
        return float(found.bytes[0, at])

    block = 16 * 10 * MIB  # a micro-batch of one, and of each end
    assert activations("interleaved_zero_bubble") == 4 * (BLOCKS / 4 + 1) * block
    head = block  # of the first rank too, and of the one micro-batch that is at its end
    assert activations("zbv") == 4 * (BLOCKS / 4 + 1) * block + head
    assert activations("dualpipev") == 4.5 * (BLOCKS / 4 + 1) * block + head


def test_a_v_shaped_pipeline_has_both_ends_on_its_first_rank() -> None:
    tied = replace(FOOTPRINT, tied_parameters=END_WEIGHTS)
    shape = {"pipeline": 2, "micro_batch": 1, "accumulation": 8, "data": 1}
    loop, fold = (
        work(a_plan(**shape, pipeline_schedule=name), footprint=tied)
        for name in ("interleaved_zero_bubble", "zbv")
    )

    found = peak_bytes(fold, NOTHING)
    assert STAGES[int(found.stage[0])] == "first"
    held = 4 * (fold.executions.first_blocks[0] * BLOCK_WEIGHTS + END_WEIGHTS)  # one of the two
    assert found.bytes[0, CATEGORIES.index("weights")] == held
    assert loop.executions.first_blocks[0] + loop.executions.last_blocks[0] == BLOCKS


def test_tensor_ranks_hold_slices() -> None:
    whole, slices = held(a_plan()), held(a_plan(tensor=4))

    assert slices["weights"] == whole["weights"] / 4
    assert slices["optimizer"] == whole["optimizer"] / 4


def test_tied_weights_exist_once_where_both_ends_are() -> None:
    tied = replace(FOOTPRINT, tied_parameters=END_WEIGHTS)

    assert held(a_plan(), tied)["weights"] == 4 * (WEIGHTS - END_WEIGHTS)
    split = held(a_plan(tensor=4), tied)
    assert split["weights"] == 4 * (WEIGHTS - END_WEIGHTS) / 4


def test_what_ddp_copies_into_buckets_counts() -> None:
    view = held(a_plan(data=4))
    copied = held(a_plan(data=4, gradient_as_bucket_view=False))

    assert view["buffers"] == 0
    assert copied["buffers"] == 4 * WEIGHTS


def test_autocast_keeps_the_weights_of_recomputed_blocks_that_it_cast() -> None:
    copies = Extent(fixed=5 * MIB, per_sample=10 * MIB)
    variants = tuple(
        replace(
            variant,
            blocks=tuple(
                replace(kind, part=replace(kind.part, saved_bytes=copies))
                for kind in variant.blocks
            ),
        )
        for variant in FOOTPRINT.variants
    )
    found = held(
        a_plan(micro_batch=16, checkpoint_ratio=1.0), replace(FOOTPRINT, variants=variants)
    )

    assert found["activations"] == (16 * (BLOCKS * 2 + 10 + 10) + BLOCKS * 5) * MIB


def test_gradients_in_buckets_are_there_from_the_start() -> None:
    """DDP keeps gradients in buckets; a single rank frees them."""
    alone = held(a_plan(micro_batch=64, accumulation=1))
    ddp = held(a_plan(micro_batch=64, accumulation=1, data=4))

    assert alone["gradients"] == 0
    assert ddp["gradients"] == 4 * WEIGHTS
