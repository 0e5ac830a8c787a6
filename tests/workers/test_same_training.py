"""Every plan trains the same: losses and gradients are those of a plain loop over samples.

The reference is independent of plans: one process, one sample at a time without padding, the
definition of the mean loss over a global batch, and torch's own AdamW. Ranks are real processes.
"""

from __future__ import annotations

import dataclasses
import itertools
from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from search_spaces.plan import Plan
from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.values import GLOBAL_BATCH, STEPS, a_plan, a_spec
from workers.data.batches import batch_source, longest_samples, step_samples
from workers.data.dataset import load_dataset
from workers.engines.build import build_training
from workers.engines.stopwatch import stopwatch_for
from workers.engines.torch import TorchTraining
from workers.models.load import build, build_whole
from workers.prepare import prepare
from workers.worker import Worker

# fp32 keeps 7 digits; sums run in another order, and AdamW carries it on through 7 updates
LOSS_TOLERANCE = 2e-5  # relative
GRADIENT_TOLERANCE = 2e-5  # of the largest gradient
WORST_STEP = -1
SPEC = a_spec()


# The nine rows of an orthogonal array over four knobs, and one of them with the other attention:
# every pair of values of any two of the five knobs occurs, in 10 plans instead of 162
ROWS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2), (0, 0))
ATTENTIONS = (0, 1, 1, 1, 0, 0, 1, 0, 0, 1)


def _every_pair() -> list[Plan]:
    return [
        a_plan(
            zero_stage=(0, 2, 3)[first],
            micro_batch=(1, 2, 4)[second],
            batching=("padded", "grouped", "packed")[(first + second) % 3],
            checkpoint_ratio=(0.0, 0.5, 1.0)[(first + 2 * second) % 3],
            attention=("sdpa", "eager")[attention],
        )
        for (first, second), attention in zip(ROWS, ATTENTIONS, strict=True)
    ]


PLANS = _every_pair()


def plan_id(plan: Plan) -> str:
    return (
        f"zero{plan.zero_stage}-micro{plan.micro_batch}x{plan.accumulation}-{plan.batching}"
        f"-ckpt{plan.checkpoint_ratio:g}-{plan.attention}"
    )


def test_every_pair_of_knob_values_is_among_the_plans() -> None:
    knobs = ("zero_stage", "micro_batch", "batching", "checkpoint_ratio", "attention")
    values = {knob: {getattr(plan, knob) for plan in PLANS} for knob in knobs}
    for one, other in itertools.combinations(knobs, 2):
        met = {(getattr(plan, one), getattr(plan, other)) for plan in PLANS}
        assert met == set(itertools.product(values[one], values[other])), (one, other)


@cache
def reference_losses(clip: float = 0.0) -> list[float]:
    """Returns the losses of a plain loop after its step on the longest samples.

    `clip` bounds the norm of the gradient.
    """
    return losses_with_the_longest(clip)[1:]


@cache
def losses_with_the_longest(clip: float = 0.0) -> list[float]:
    """Returns `reference_losses`, preceded by the loss of the step on the longest samples."""
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=SPEC.train.learning_rate, weight_decay=SPEC.train.weight_decay
    )
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        if clip:
            torch.nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
    return losses


def _accumulate(module: torch.nn.Module, step: int) -> float:
    """Returns the mean loss over all targets of a step's samples; accumulates its gradient."""
    data = load_dataset(SPEC.data, SPEC.train, 500)
    if step == WORST_STEP:
        numbers = longest_samples(data.lengths, GLOBAL_BATCH)
    else:
        numbers = step_samples(data.lengths, step, GLOBAL_BATCH, SPEC.train.seed)
    samples = [torch.from_numpy(data.sample(number).astype("int64")) for number in numbers]
    targets = sum(len(sample) - 1 for sample in samples)
    loss = 0.0
    for sample in samples:
        logits = module(input_ids=sample[None]).logits[0]
        part = cross_entropy(logits[:-1], sample[1:], reduction="sum") / targets
        part.backward()
        loss += part.item()
    return loss


@pytest.mark.cases_by_default(5)
@pytest.mark.parametrize("plan", PLANS, ids=plan_id)
def test_the_losses_of_a_plan_are_those_of_the_plain_loop(pair: Group, plan: Plan) -> None:
    outcome = pair.run(TrialRequest(number=0, plan=plan, spec=SPEC))

    assert isinstance(outcome, Measured)
    assert len(outcome.losses) == STEPS
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def test_one_rank_alone_trains_the_same(alone: Group) -> None:
    plan = a_plan(data=1, micro_batch=4)

    outcome = alone.run(TrialRequest(number=0, plan=plan, spec=SPEC))

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)


def test_the_reference_learns_so_that_a_wrong_update_would_show() -> None:
    frozen = build_whole(SPEC.model, SPEC.train, attention="eager").module
    unmoved = [_accumulate(frozen, step) for step in range(STEPS)]

    apart = [abs(a - b) / a for a, b in zip(unmoved, reference_losses(), strict=True)]
    assert min(apart) > 50 * LOSS_TOLERANCE


# AdamW divides the gradient by its own size, so that losses alone cannot tell a gradient from
# its half. Plain SGD with a rate of 1 can: it moves the weights by the gradient itself.


@cache
def reference_gradients() -> dict[str, torch.Tensor]:
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    _accumulate(module, 0)
    return {
        name: weight.grad.clone()
        for name, weight in module.named_parameters()
        if weight.grad is not None
    }


def _moved(worker: Worker, request: TrialRequest) -> dict[str, torch.Tensor]:
    """Change of each weight by one step of SGD on this rank; sharded weights are gathered."""
    mesh = worker.group.acquire(30.0, request.plan)
    model = build(SPEC.model, SPEC.train, attention="eager")
    source = batch_source(model, SPEC)
    training = build_training(request, model, prepare(SPEC), mesh, worker.device)
    assert isinstance(training, TorchTraining)
    weights = dict(training.module.named_parameters())
    before = {name: _whole(weight) for name, weight in weights.items()}
    sgd = torch.optim.SGD(training.module.parameters(), lr=1.0)
    given = source.step(request.plan, mesh.place.data if mesh else 0, 0)
    by_gradient = dataclasses.replace(
        training, update=dataclasses.replace(training.update, optimizer=sgd)
    )
    by_gradient.step(given.batches, given.targets, stopwatch_for(worker.device))
    return {
        name.removeprefix("module."): (before[name] - _whole(weight)).numpy()
        for name, weight in weights.items()
    }


def _whole(weight: torch.Tensor) -> torch.Tensor:
    full = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return full.detach().clone()


@pytest.mark.parametrize("micro_batch", [1, 4])
@pytest.mark.parametrize("zero_stage", [0, 2, 3])
def test_a_step_moves_the_weights_by_the_gradient_of_the_mean_loss(
    pair: Group, zero_stage: int, micro_batch: int
) -> None:
    plan = a_plan(zero_stage=zero_stage, micro_batch=micro_batch)
    expected = reference_gradients()
    largest = max(gradient.abs().max().item() for gradient in expected.values())

    ranks: list[dict[str, Any]] = pair.call(_moved, TrialRequest(number=0, plan=plan, spec=SPEC))

    for moved in ranks:
        assert moved.keys() == expected.keys()
        for name, gradient in expected.items():
            worst = (torch.from_numpy(moved[name]) - gradient).abs().max().item()
            assert worst < GRADIENT_TOLERANCE * largest, name
