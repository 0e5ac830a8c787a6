"""The norm of the gradient is that of the whole model, however the model is split.

SGD with a rate of 1 moves the weights by the clipped gradient, so the change of the weights shows
the norm by which it was divided.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor

from search_spaces.trial import TrialRequest
from tests.workers.launch import Group, Groups
from tests.workers.test_same_training import GRADIENT_TOLERANCE, reference_gradients
from tests.workers.values import a_plan, a_spec
from workers.data.batches import batch_source
from workers.engines.build import build_training
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.load import build
from workers.plain_torch.slices import as_distributed
from workers.plain_torch.update import Clipping
from workers.prepare import prepare
from workers.worker import Worker

MAX_NORM = 0.05
OFFLOAD = {"offload_optimizer": "cpu", "offload_parameters": "cpu"}
LAYOUTS: list[tuple[int, dict[str, Any]]] = [
    (1, {"data": 1, "micro_batch": 4}),
    (2, {"zero_stage": 0}),
    (2, {"zero_stage": 2}),
    (2, {"zero_stage": 3}),
    (2, {"zero_stage": 3} | OFFLOAD),
    (2, {"data": 1, "tensor": 2}),
    (4, {"data": 4, "zero_stage": 3, "replicas": 2, "micro_batch": 1}),
    (4, {"data": 2, "tensor": 2}),
    (4, {"data": 2, "tensor": 2, "zero_stage": 3}),
]


def clipped_reference(max_norm: float) -> dict[str, torch.Tensor]:
    """The plain loop's gradients, clipped by torch in one process."""
    weights = {name: torch.zeros_like(grad) for name, grad in reference_gradients().items()}
    for name, gradient in reference_gradients().items():
        weights[name].grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(weights.values(), max_norm)
    assert norm > 10 * MAX_NORM, "nothing is clipped"
    return {name: weight.grad for name, weight in weights.items() if weight.grad is not None}


def _whole(weight: torch.Tensor) -> torch.Tensor:
    """Gathers a weight from the slices and shards of all ranks."""
    found = as_distributed(weight)
    return (found.full_tensor() if isinstance(found, DTensor) else found).detach().clone()


def _moved(worker: Worker, request: TrialRequest) -> dict[str, Any]:
    """Change of each weight by one step of SGD."""
    mesh, spec = worker.group.acquire(30.0, request.plan), request.spec
    model = build(spec.model, spec.train, attention="eager")
    source = batch_source(model, spec)
    training = build_training(request, model, prepare(spec), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    weights = dict(training.module.named_parameters())
    before = {name: _whole(weight) for name, weight in weights.items()}
    sgd = torch.optim.SGD(training.module.parameters(), lr=1.0)
    by_gradient = replace(training, update=replace(training.update, optimizer=sgd))
    given = source.step(request.plan, mesh.place.data if mesh else 0, 0)
    by_gradient.step(given.batches, given.targets, stopwatch_for(worker.device))
    return {
        name.removeprefix("module."): (before[name] - _whole(weight)).numpy()
        for name, weight in weights.items()
    }


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize(
    ("ranks", "knobs"), LAYOUTS, ids=lambda value: value if isinstance(value, int) else str(value)
)
def test_the_clipped_gradient_is_that_of_one_process(
    groups: Groups,
    ranks: int,
    knobs: dict[str, Any],
) -> None:
    group: Group = groups.of(ranks)
    spec = a_spec(train={"grad_clip": MAX_NORM})
    expected = clipped_reference(MAX_NORM)
    largest = max(gradient.abs().max().item() for gradient in expected.values())

    request = TrialRequest(number=0, plan=a_plan(**knobs), spec=spec)
    ranks_moved: list[dict[str, Any]] = group.call(_moved, request)

    for moved in ranks_moved:
        for name, gradient in expected.items():
            worst = (torch.from_numpy(moved[name]) - gradient).abs().max().item()
            # a weight of about 1 that moves by 1e-3 keeps 4 digits of the difference
            assert worst < 10 * GRADIENT_TOLERANCE * largest, name


def _norm_by_stage(worker: Worker, request: TrialRequest, *, left_out: bool) -> float:
    """Norm over two stages, which each have their own weight and share a tied one."""
    mesh = worker.group.acquire(30.0, request.plan)
    assert mesh is not None
    own, tied = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))
    own.grad, tied.grad = torch.full((2,), 1.0 + mesh.place.stage), torch.full((1,), 4.0)
    elsewhere = (tied,) if left_out and mesh.place.stage == 1 else ()
    clipping = Clipping(
        max_norm=1.0,
        group=mesh.group,
        holders=1,
        device=worker.device,
        counted_elsewhere=elsewhere,
    )
    return clipping.norm([own, tied]).item()


def _norm_of_stages(worker: Worker, request: TrialRequest) -> float:
    return _norm_by_stage(worker, request, left_out=True)


def _norm_of_stages_with_all(worker: Worker, request: TrialRequest) -> float:
    return _norm_by_stage(worker, request, left_out=False)


def test_stages_add_up_and_a_tied_weight_counts_once(pair: Group) -> None:
    request = TrialRequest(number=0, plan=a_plan(data=1, pipeline=2, micro_batch=2), spec=a_spec())

    own = 2 * 1.0**2 + 2 * 2.0**2
    assert pair.call(_norm_of_stages, request) == pytest.approx([(own + 16) ** 0.5] * 2)
    assert pair.call(_norm_of_stages_with_all, request) == pytest.approx([(own + 32) ** 0.5] * 2)
