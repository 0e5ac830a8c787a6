"""Measured model states of each rank, against the arithmetic of the ZeRO paper.

Each of N data ranks holds 1/N of what a stage splits, and all of the rest. In fp32 a parameter
takes 4 bytes as a weight, 4 as a gradient and 4 in each of Adam's two moments. Every tensor of the
model divides by 4, so that no shard is padded and expected values are exact to the byte.

Source:
    Rajbhandari et al. 2020, arXiv:1910.02054, figure 1 and section 5: stage 1 splits optimizer
    states, stage 2 gradients as well, stage 3 weights as well.
"""

import dataclasses
from typing import Any

import pytest

from search_spaces.specification.schema import SweepSpec
from search_spaces.trial import Measured, Outcome, TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.test_anatomy import PARAMETERS, TENSORS, WIDTH, WORDS
from tests.workers.values import GLOBAL_BATCH, LLAMA, SHORT, a_request, a_spec
from workers.entry import run_trial
from workers.worker import Worker

FP32_BYTES = 4
MOMENTS = 2  # of Adam
COUNTER_BYTES = 4  # AdamW counts its steps for each tensor that it updates
SMALL = 5 * WIDTH  # parameters of the norms, which tensor ranks and ZeRO-3 of DeepSpeed keep whole
SPEC = a_spec(objective=SHORT)

States = tuple[float, float, float]  # bytes of weights, gradients and optimizer states


def _own_ending(worker: Worker, request: TrialRequest) -> Outcome:
    """Runs a trial; returns this rank's own announcement, before the ranks agreed."""
    told: list[Outcome] = []
    run_trial(request, dataclasses.replace(worker, announce=told.append))
    return told[0]


def states_of(group: Group, spec: SweepSpec = SPEC, **knobs: Any) -> list[States]:
    """Model states of each rank of a measured trial."""
    found: list[States] = []
    for ending in group.call(_own_ending, a_request(spec, **knobs)):
        assert isinstance(ending, Measured), ending
        anatomy = ending.memory.anatomy
        found.append((anatomy.weights, anatomy.gradients, anatomy.optimizer_states))
    return found


def by_the_paper(parameters: float, zero_stage: int, ranks: int) -> States:
    """Expected bytes of one rank."""
    whole, share = FP32_BYTES * parameters, FP32_BYTES * parameters / ranks
    return (
        share if zero_stage >= 3 else whole,
        share if zero_stage >= 2 else whole,
        MOMENTS * (share if zero_stage >= 1 else whole),
    )


def plus(
    states: States, *, weights: float = 0, gradients: float = 0, optimizer: float = 0
) -> States:
    return states[0] + weights, states[1] + gradients, states[2] + optimizer


def data_ranks(ranks: int) -> dict[str, int]:
    """Knobs of a plan that splits the batch over a number of ranks, in two micro-batches."""
    return {"data": ranks, "micro_batch": GLOBAL_BATCH // ranks // 2}


# FSDP2 holds shards alone between steps at both of its stages: what stage 2 keeps gathered until
# backward is given back there, and counts as activations. Two ranks are in test_anatomy.
@pytest.mark.parametrize(("zero_stage", "of_the_paper"), [(0, 0), (2, 3), (3, 3)])
def test_four_ranks_of_torch(four: Group, zero_stage: int, of_the_paper: int) -> None:
    expected = plus(by_the_paper(PARAMETERS, of_the_paper, 4), optimizer=TENSORS * COUNTER_BYTES)
    assert states_of(four, **data_ranks(4), zero_stage=zero_stage) == 4 * [expected]


@pytest.mark.parametrize(
    ("zero_stage", "ranks"),
    [
        (2, 2),
        *(pytest.param(stage, 2, marks=pytest.mark.thorough) for stage in (0, 1, 3)),
        *(pytest.param(stage, 4, marks=pytest.mark.thorough) for stage in (0, 1, 2, 3)),
    ],
)
def test_stages_of_deepspeed(groups: Groups, zero_stage: int, ranks: int) -> None:
    """DeepSpeed updates a flat fp32 master copy from stage 1 on, even in fp32 training.

    It is the copy of the paper's mixed precision (K = 12), here in addition to fp32 weights.
    """
    expected = by_the_paper(PARAMETERS, zero_stage, ranks)
    if zero_stage == 0:
        expected = plus(expected, optimizer=TENSORS * COUNTER_BYTES)
    else:
        master = FP32_BYTES * PARAMETERS / ranks
        expected = plus(expected, optimizer=master + COUNTER_BYTES)
    if zero_stage == 3:
        expected = plus(expected, weights=FP32_BYTES * SMALL)  # beside their shards

    found = states_of(
        groups.of(ranks), **data_ranks(ranks), engine="deepspeed", zero_stage=zero_stage
    )

    assert found == ranks * [expected]


def test_rows_that_ranks_cannot_share_alike_add_up_all_the_same(four: Group) -> None:
    odd = LLAMA | {"config": LLAMA["config"] | {"vocab_size": WORDS + 1}}
    parameters = PARAMETERS + WIDTH
    share, _, _ = by_the_paper(parameters, 3, 4)

    weights, gradients, optimizer = zip(
        *states_of(four, a_spec(model=odd), **data_ranks(4), zero_stage=3), strict=True
    )

    assert sum(weights) == sum(gradients) == FP32_BYTES * parameters
    assert sum(optimizer) == MOMENTS * FP32_BYTES * parameters + 4 * TENSORS * COUNTER_BYTES
    assert max(weights) - share < FP32_BYTES * WIDTH  # less than a row more than an equal share


def test_hybrid_shard_splits_within_a_replica_alone(four: Group) -> None:
    expected = plus(by_the_paper(PARAMETERS, 3, 2), optimizer=TENSORS * COUNTER_BYTES)
    assert states_of(four, **data_ranks(4), zero_stage=3, replicas=2) == 4 * [expected]


@pytest.mark.parametrize(
    ("data", "zero_stage"), [(1, 0), pytest.param(2, 2, marks=pytest.mark.thorough)]
)
def test_tensor_ranks_split_all_but_the_norms(groups: Groups, data: int, zero_stage: int) -> None:
    held = (SMALL + (PARAMETERS - SMALL) / 2) / data

    expected = plus(by_the_paper(held, 0, 1), optimizer=TENSORS * COUNTER_BYTES)
    knobs = {"tensor": 2, **data_ranks(data), "zero_stage": zero_stage}
    assert states_of(groups.of(2 * data), **knobs) == 2 * data * [expected]


def _assert_stages_hold(found: list[States], shards: int) -> None:
    """All ranks together hold each parameter once, except the embedding, tied to the head."""
    held = FP32_BYTES * (PARAMETERS + WORDS * WIDTH)
    counters = (TENSORS + 1) * COUNTER_BYTES * shards
    sums = tuple(sum(column) for column in zip(*found, strict=True))
    assert sums == (held, held, MOMENTS * held + counters)
    largest = max(weights for weights, _, _ in found)
    assert largest == pytest.approx(held / len(found), rel=0.01)  # the last norm is on one side


def test_pipeline_ranks_split_the_blocks(pair: Group) -> None:
    _assert_stages_hold(states_of(pair, pipeline=2, data=1), shards=1)


def test_shards_of_stages_multiply(four: Group) -> None:
    found = states_of(four, pipeline=2, data=2, zero_stage=3, micro_batch=1)

    _assert_stages_hold(found, shards=2)
