"""DDP: gradient buckets and gradient compression."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from search_spaces.plan import Compression
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.test_same_training import (
    LOSS_TOLERANCE,
    SPEC,
    _moved,
    reference_gradients,
    reference_losses,
)
from tests.workers.values import a_plan, a_request, a_spec
from workers.data.batches import batch_source
from workers.engines.build import build_training
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.load import build
from workers.prepare import prepare
from workers.worker import Worker

FP16_TOLERANCE = 1e-3  # relative: fp16 has a mantissa of 11 bits
LONG = a_spec(
    objective={"max_steps": 20, "min_steps": 20, "max_seconds": 30},
    train={"learning_rate": 1e-2},
)


def _in_buckets(worker: Worker, request: TrialRequest) -> tuple[int, int]:
    """Counts gradients that share a storage with another one before the optimizer, and all."""
    mesh = worker.group.acquire(30.0, request.plan)
    model = build(SPEC.model, SPEC.train, attention="sdpa")
    source = batch_source(model, SPEC)
    training = build_training(request, model, prepare(SPEC), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    places: list[int] = []

    def look(*_: Any) -> None:
        places.extend(
            weight.grad.untyped_storage().data_ptr()
            for weight in training.module.parameters()
            if weight.grad is not None
        )

    training.update.optimizer.register_step_pre_hook(look)
    for step in range(2):
        places.clear()
        given = source.step(request.plan, mesh.place.data if mesh else 0, step)
        training.step(given.batches, given.targets, stopwatch_for(worker.device))
    training.close()
    return len(set(places)), len(places)


@pytest.mark.parametrize("view", [False, True])
def test_gradients_are_views_of_the_buckets_if_the_plan_says_so(pair: Group, view: bool) -> None:
    request = a_request(SPEC, gradient_as_bucket_view=view)

    for storages, gradients in pair.call(_in_buckets, request):
        assert storages == (1 if view else gradients)  # the tiny model is one bucket


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("bucket_mib", [1, 25])
def test_buckets_change_no_loss(pair: Group, bucket_mib: int, view: bool) -> None:
    request = a_request(SPEC, bucket_mib=bucket_mib, gradient_as_bucket_view=view)

    outcome = pair.run(request)

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def _knows_its_graph(worker: Worker, request: TrialRequest) -> bool:
    """Takes two steps; returns whether DDP was told that the graph is always the same."""
    mesh = worker.group.acquire(30.0, request.plan)
    assert mesh is not None
    model = build(SPEC.model, SPEC.train, attention="sdpa")
    source = batch_source(model, SPEC)
    training = build_training(request, model, prepare(SPEC), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    for step in range(2):
        given = source.step(request.plan, mesh.place.data, step)
        training.step(given.batches, given.targets, stopwatch_for(worker.device))
    replicas = training.module
    assert isinstance(replicas, DistributedDataParallel)
    training.close()
    return bool(replicas.static_graph)


@pytest.mark.parametrize("checkpoint_ratio", [0.0, 1.0])
def test_a_graph_that_is_declared_static_changes_no_loss(
    pair: Group, checkpoint_ratio: float
) -> None:
    micro_batch = SPEC.train.global_batch // 2
    knobs = {"micro_batch": micro_batch, "checkpoint_ratio": checkpoint_ratio}
    request = a_request(SPEC, **knobs, ddp_static_graph=True)

    outcome = pair.run(request)

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    assert all(pair.call(_knows_its_graph, request))


def test_gradients_sent_in_half_are_rounded_and_no_more(pair: Group) -> None:
    plan = a_plan(compression="fp16")  # torch has no bf16 hook for gloo
    expected = reference_gradients()

    for moved in pair.call(_moved, TrialRequest(number=0, plan=plan, spec=SPEC)):
        apart = 0.0
        for name, gradient in expected.items():
            difference = (torch.from_numpy(moved[name]) - gradient).norm().item()
            assert difference < FP16_TOLERANCE * gradient.norm().item(), name
            apart = max(apart, difference / gradient.norm().item())
        assert apart > FP16_TOLERANCE / 100  # they were rounded indeed


def test_powersgd_still_trains(pair: Group) -> None:
    outcome = pair.run(a_request(LONG, compression="powersgd"))
    exact = pair.run(a_request(LONG))

    assert isinstance(outcome, Measured)
    assert isinstance(exact, Measured)
    # only the step on the longest samples and the one after it go uncompressed
    assert outcome.losses[:2] == pytest.approx(exact.losses[:2], rel=LOSS_TOLERANCE)
    assert outcome.losses[3:] != pytest.approx(exact.losses[3:], rel=LOSS_TOLERANCE)
    assert sum(outcome.losses[-4:]) < 0.97 * sum(outcome.losses[:4])


def _left(worker: Worker, request: TrialRequest) -> bool:
    """Returns True if a model is alive after some steps, once nothing uses it."""
    mesh = worker.group.acquire(30.0, request.plan)
    model = build(SPEC.model, SPEC.train, attention="sdpa")
    source = batch_source(model, SPEC)
    training = build_training(request, model, prepare(SPEC), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    assert isinstance(training.module, DistributedDataParallel)
    for step in range(4):
        given = source.step(request.plan, mesh.place.data if mesh else 0, step)
        training.step(given.batches, given.targets, stopwatch_for(worker.device))
    left = weakref.ref(training.module)
    training.close()
    del training, model, source
    gc.collect()
    return left() is not None


@pytest.mark.parametrize("compression", ["fp16", "powersgd"])
def test_compression_keeps_nothing(pair: Group, compression: Compression) -> None:
    assert pair.call(_left, a_request(SPEC, compression=compression)) == [False, False]
