"""FSDP2: every sharding trains the same and holds the expected bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from search_spaces.trial import Measured, TrialRequest
from tests.covering import every_value
from tests.workers.launch import Group
from tests.workers.test_same_training import (
    GRADIENT_TOLERANCE,
    LOSS_TOLERANCE,
    SPEC,
    _moved,
    reference_gradients,
    reference_losses,
)
from tests.workers.values import LLAMA, a_plan, a_request, a_spec
from workers.data.batches import batch_source
from workers.engines.build import build_training
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.load import build
from workers.prepare import prepare
from workers.worker import Worker

FP32_BYTES = 4
FOUR_BLOCKS = a_spec(model=LLAMA | {"config": LLAMA["config"] | {"num_hidden_layers": 4}})


def measured(group: Group, request: TrialRequest) -> Measured:
    outcome = group.run(request)
    assert isinstance(outcome, Measured), outcome
    return outcome


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_hybrid_shard_trains_the_same(four: Group, zero_stage: int) -> None:
    request = a_request(SPEC, zero_stage=zero_stage, data=4, replicas=2, micro_batch=1)

    assert request.plan.accumulation == 2  # gradients are averaged over replicas once
    assert measured(four, request).losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def test_hybrid_shard_moves_the_weights_by_the_gradient_of_the_mean_loss(four: Group) -> None:
    plan = a_plan(zero_stage=3, data=4, replicas=2, micro_batch=1)
    expected = reference_gradients()
    largest = max(gradient.abs().max().item() for gradient in expected.values())

    ranks: list[dict[str, Any]] = four.call(_moved, TrialRequest(number=0, plan=plan, spec=SPEC))

    for moved in ranks:
        for name, gradient in expected.items():
            worst = (torch.from_numpy(moved[name]) - gradient).abs().max().item()
            assert worst < GRADIENT_TOLERANCE * largest, name


def test_weights_that_two_ranks_keep_train_the_same(four: Group) -> None:
    request = a_request(SPEC, zero_stage=3, data=4, reshard_ranks=2, micro_batch=1)

    assert measured(four, request).losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def _kept(worker: Worker, request: TrialRequest) -> tuple[set[float], list[list[int]]]:
    """Shares of blocks' weights on this rank after forward, and the ranks that have the others."""
    plan, spec = request.plan, request.spec
    mesh = worker.group.acquire(30.0, plan)
    model = build(spec.model, spec.train, attention=plan.attention)
    given = batch_source(model, spec).step(plan, mesh.place.data if mesh else 0, 0)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    loss = training.module(**given.batches[0].on(worker.device)).loss
    shares: set[float] = set()
    ranks: list[list[int]] = []
    for part in training.module.modules():
        if not isinstance(part, FSDPModule) or part is training.module:
            continue
        group: Any = part._get_fsdp_state()._fsdp_param_group
        gathers = group._all_gather_process_group
        assert any(gathers is own for own in worker.group._groups())  # which a failure aborts
        ranks.append(dist.get_process_group_ranks(gathers))
        for weight in group.fsdp_params:
            kept = weight._sharded_post_forward_param_data.numel()
            shares.add(kept / weight._orig_size.numel())
    loss.backward()
    return shares, ranks


def test_weights_stay_with_so_many_neighbours_until_backward(four: Group) -> None:
    request = a_request(SPEC, zero_stage=3, data=4, reshard_ranks=2, micro_batch=1)

    for rank, (shares, groups) in enumerate(four.call(_kept, request)):
        assert shares == {1 / 2}
        assert {tuple(group) for group in groups} == {(0, 1) if rank < 2 else (2, 3)}


def test_weights_are_split_over_the_ranks_of_a_replica(four: Group) -> None:
    """Rajbhandari et al. 2020: N ranks hold 1/N each; replicas of M ranks hold 1/M each."""
    request = a_request(zero_stage=0, data=4, micro_batch=1)
    whole = measured(four, request).memory.anatomy.weights

    for replicas, ranks in ((1, 4), (2, 2)):
        request = a_request(zero_stage=3, data=4, replicas=replicas, micro_batch=1)
        anatomy = measured(four, request).memory.anatomy
        assert anatomy.weights == whole // ranks  # every tensor of the tiny Llama divides by 4
        assert anatomy.gradients == whole // ranks


@pytest.mark.parametrize(**every_value(zero_stage=(2, 3), pin_memory=(False, True)))
def test_offload_trains_the_same(pair: Group, zero_stage: int, pin_memory: bool) -> None:
    request = a_request(
        SPEC,
        zero_stage=zero_stage,
        micro_batch=2,
        offload_optimizer="cpu",
        offload_parameters="cpu",
        pin_memory=pin_memory,
    )

    assert measured(pair, request).losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize("zero_stage", [2, 3])
def test_bf16_is_near_fp32_and_keeps_fp32_weights(pair: Group, zero_stage: int) -> None:
    whole = measured(pair, a_request(SPEC, zero_stage=zero_stage))
    half = measured(pair, a_request(SPEC, zero_stage=zero_stage, precision="bf16"))

    assert half.losses != whole.losses
    assert half.losses == pytest.approx(whole.losses, rel=0.05)
    assert half.memory.anatomy.weights == whole.memory.anatomy.weights


def _gathers(worker: Worker, request: TrialRequest) -> dict[str, list[str]]:
    """Takes a step; returns the names of the modules whose weights each module gathers ahead."""
    mesh = worker.group.acquire(30.0, request.plan)
    assert mesh is not None
    spec = request.spec
    model = build(spec.model, spec.train, attention="sdpa")
    given = batch_source(model, spec).step(request.plan, mesh.place.data, 0)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    training.step(given.batches, given.targets, stopwatch_for(worker.device))
    sharded = {
        one._get_fsdp_state(): name.removeprefix("model.layers.")
        for name, one in training.module.named_modules()
        if isinstance(one, FSDPModule)
    }
    training.close()
    return {
        name: [
            " ".join(sharded[other] for other in others)
            for others in (state._states_to_forward_prefetch, state._states_to_backward_prefetch)
        ]
        for state, name in sharded.items()
    }


def test_blocks_are_told_whose_weights_to_gather_ahead(pair: Group) -> None:
    request = a_request(FOUR_BLOCKS, zero_stage=3, prefetch_blocks=2)

    for gathers in pair.call(_gathers, request):
        assert gathers == {  # in forward, in backward; "" is the model around the blocks
            "": ["0 1", "3 2"],
            "0": ["1 2", ""],
            "1": ["2 3", "0"],
            "2": ["3", "1 0"],
            "3": ["", "2 1"],
        }


@pytest.mark.cases_by_default(1)
@pytest.mark.parametrize(
    **every_value(zero_stage=(2, 3), prefetch_blocks=(1, 2), checkpoint_ratio=(0.0, 1.0))
)
def test_gathering_ahead_trains_the_same(
    pair: Group, zero_stage: int, prefetch_blocks: int, checkpoint_ratio: float
) -> None:
    knobs = {"zero_stage": zero_stage, "checkpoint_ratio": checkpoint_ratio}
    default = measured(pair, a_request(SPEC, **knobs))
    ahead = measured(pair, a_request(SPEC, **knobs, prefetch_blocks=prefetch_blocks))

    assert ahead.losses == default.losses  # the same sums, gathered in another order
