"""Tests the breakdown of the memory peak against arithmetic and each knob's purpose."""

from collections.abc import Iterator
from typing import Any

import pytest

from search_spaces.trial import Anatomy, Measured, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.values import LLAMA, a_request, a_spec
from workers.models.load import build

thorough = pytest.mark.thorough
MIB = 2**20
FP32_BYTES = 4
# The tiny Llama by hand. Embedding, tied to the head: 500 words of 64. A layer: q and o of 64 x 64,
# k and v of 64 x 32 (2 of 4 heads), gate, up and down of 64 x 128, two norms of 64. A last norm.
WORDS, WIDTH = 500, 64
LAYER = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64
PARAMETERS = WORDS * WIDTH + 2 * LAYER + 64
TENSORS = 1 + 2 * 9 + 1
COUNTER_BYTES = 4 * TENSORS  # AdamW counts its steps in each tensor's state


def anatomy_of(group: Group, request: TrialRequest) -> Anatomy:
    outcome = group.run(request)
    assert isinstance(outcome, Measured)
    assert 0 < outcome.memory.peak_bytes <= outcome.memory.limit_bytes
    return outcome.memory.anatomy


def state_of(anatomy: Anatomy) -> tuple[int, int, int]:
    return anatomy.weights, anatomy.gradients, anatomy.optimizer_states


def test_the_arithmetic_counts_the_model_that_is_built() -> None:
    spec = a_spec()
    weights = list(build(spec.model, spec.train, attention="sdpa").module.parameters())

    assert (len(weights), sum(weight.numel() for weight in weights)) == (TENSORS, PARAMETERS)


@pytest.mark.parametrize(
    ("knobs", "gradients", "shards"),
    [
        ({"zero_stage": 0}, 1, 1),
        ({"zero_stage": 0, "gradient_as_bucket_view": False}, 2, 1),  # in buckets too
        ({"zero_stage": 3}, 1, 2),
        pytest.param({"zero_stage": 2}, 1, 2, marks=thorough),
        pytest.param({"data": 1, "micro_batch": 4}, 1, 1, marks=thorough),
    ],
    ids=str,
)
def test_the_model_state_is_counted_to_the_byte(
    groups: Groups, knobs: dict[str, Any], gradients: int, shards: int
) -> None:
    """Rajbhandari et al. 2020, figure 1: with N ranks each holds 1/N of what is split."""
    anatomy = anatomy_of(groups.of(knobs.get("data", 2)), a_request(**knobs))

    weights = FP32_BYTES * PARAMETERS // shards
    states = 2 * weights + COUNTER_BYTES
    assert state_of(anatomy) == (weights, gradients * weights, states)


def test_activations_are_the_peak_without_model_state(pair: Group) -> None:
    outcome = pair.run(a_request())

    assert isinstance(outcome, Measured)
    memory, anatomy = outcome.memory, outcome.memory.anatomy
    assert memory.reserved_bytes == memory.peak_bytes
    assert memory.allocated_bytes is None  # the CPU's allocator does not count
    assert anatomy.fragmentation is None
    assert anatomy.activations == max(memory.peak_bytes - sum(state_of(anatomy)), 0)
    assert anatomy.outside > 50 * MIB  # Python, torch and transformers


# Large enough for activations to stand out: a hidden tensor of 8 samples takes 0.5 MB, and about
# twenty of them live on for each of 8 layers.
WIDE = a_spec(
    model={**LLAMA, "config": {**LLAMA["config"], "num_hidden_layers": 8}},
    data={"lengths": {256: 1}},
    train={"global_batch": 8, "sequence_length": 256},
    objective={"max_steps": 6, "max_seconds": 0.1},
)


@pytest.fixture(scope="module")
def fresh() -> Iterator[Group]:
    """A fresh rank: the heap of a used one has holes, which hide a part of a peak."""
    group = Group(1, WIDE)
    yield group
    group.stop()


def activations_of(alone: Group, micro_batch: int, checkpoint_ratio: float = 0.0) -> int:
    request = a_request(
        WIDE,
        data=1,
        micro_batch=micro_batch,
        accumulation=8 // micro_batch,
        checkpoint_ratio=checkpoint_ratio,
    )
    return anatomy_of(alone, request).activations


@thorough
def test_recomputation_takes_activations_away(fresh: Group) -> None:
    none, half, all_of_them = (activations_of(fresh, 8, ratio) for ratio in (0.0, 0.5, 1.0))

    assert half < 0.95 * none
    assert all_of_them < 0.8 * none
