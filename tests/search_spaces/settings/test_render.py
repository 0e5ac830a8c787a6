"""`render`: the setting of each knob, and the even spread of recomputed blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from search_spaces.settings.blocks import evenly_spaced
from search_spaces.settings.render import render_environment, render_torch
from tests.plans import ddp_plan
from tests.search_spaces.values import a_model


@pytest.mark.parametrize(
    ("ratio", "blocks", "chosen"),
    [
        (0.0, 4, ()),
        (0.25, 4, (3,)),
        (0.5, 4, (1, 3)),
        (0.75, 4, (1, 2, 3)),
        (1.0, 4, (0, 1, 2, 3)),
        (0.5, 2, (1,)),
        (0.5, 1, (0,)),  # half of one block is rounded up
        (0.25, 1, ()),
        (1.0, 0, ()),
    ],
)
def test_a_ratio_recomputes_so_many_blocks(
    ratio: float, blocks: int, chosen: tuple[int, ...]
) -> None:
    settings = render_torch(ddp_plan(checkpoint_ratio=ratio), a_model(blocks=blocks))

    assert settings.blocks.recomputed == chosen


@pytest.mark.parametrize(
    ("schedule", "stages"),
    [
        ("1f1b", ((0, 1), (2, 3))),
        ("gpipe", ((0, 1), (2, 3))),
        ("interleaved", ((0,), (1,), (2,), (3,))),
        ("zbv", ((0,), (1,), (2,), (3,))),
    ],
)
def test_a_pipeline_cuts_all_blocks(schedule: str, stages: tuple[tuple[int, ...], ...]) -> None:
    plan = ddp_plan(pipeline=2, pipeline_schedule=schedule)

    pipeline = render_torch(plan, a_model(blocks=4)).pipeline

    assert pipeline is not None
    assert (pipeline.ranks, pipeline.schedule) == (2, schedule)
    assert pipeline.stages == stages
    assert pipeline.micro_batches == plan.accumulation


def test_where_backward_is_split_gradients_are_averaged_after_the_step() -> None:
    def rendered(schedule: str, data: int) -> tuple[bool, int | None]:
        plan = ddp_plan(pipeline=2, pipeline_schedule=schedule, data=data, bucket_mib=7)
        settings = render_torch(plan, a_model(blocks=4))
        assert settings.pipeline is not None
        return settings.ddp is not None, settings.pipeline.average_mib

    assert rendered("interleaved", 2) == (True, None)
    assert rendered("interleaved_zero_bubble", 2) == (False, 7)
    assert rendered("dualpipev", 1) == (False, None)


@pytest.mark.parametrize(
    ("zero_stage", "ranks", "reshards"), [(2, 0, False), (3, 0, True), (3, 4, 4)]
)
def test_weights_are_kept_by_so_many_ranks(
    zero_stage: int, ranks: int, reshards: bool | int
) -> None:
    plan = ddp_plan(zero_stage=zero_stage, data=8, reshard_ranks=ranks)

    settings = render_torch(plan, a_model()).fsdp2

    assert settings is not None
    found = settings.reshard_after_forward
    assert (type(found), found) == (type(reshards), reshards)  # True is no number of ranks


@pytest.mark.parametrize(
    ("allocator", "device", "names"),
    [
        ("default", "cuda", ()),
        ("expandable_segments", "cuda", ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")),
        ("max_split", "cuda", ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")),
        ("default", "cpu", ()),
        ("mmap", "cpu", ("MALLOC_MMAP_THRESHOLD_",)),
    ],
)
def test_an_allocator_is_set_before_the_process_starts(
    allocator: str, device: str, names: tuple[str, ...]
) -> None:
    environment = render_environment(ddp_plan(allocator=allocator), device)

    assert tuple(name for name, _ in environment) == names


PARTS = st.integers(0, 200).flatmap(
    lambda blocks: st.tuples(st.integers(0, blocks), st.just(blocks))
)


@given(PARTS)
def test_any_stretch_of_blocks_holds_its_share_to_within_one(part: tuple[int, int]) -> None:
    chosen, blocks = part
    indices = set(evenly_spaced(chosen, blocks))

    for first in range(0, blocks, max(blocks // 5, 1)):
        for last in range(first + 1, blocks + 1, max(blocks // 7, 1)):
            held = sum(index in indices for index in range(first, last))
            assert abs(held - chosen * (last - first) / blocks) <= 1
