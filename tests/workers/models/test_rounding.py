"""Weights that are rounded otherwise: a repeat shows by them how far rounding alone carries."""

import dataclasses
from typing import Any

import pytest
import torch
from torch import nn

from orchestrator.core.losses import ROUNDING_FACTOR, TOLERANCE_HALF, loss_differences
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.values import a_request, a_spec
from workers.models.deferred_init import Rounding
from workers.worker import Worker

BF16 = 2**-8


@pytest.mark.parametrize("shape", [(3, 5), (7,), (), (3000, 512)], ids=str)
def test_each_element_changes_by_up_to_the_roundoff(shape: tuple[int, ...]) -> None:
    weight = nn.Parameter(torch.rand(shape) + 0.5)  # a normal number may be 0
    before = weight.detach().clone()

    Rounding(roundoff=BF16, seed=3).perturb(weight)

    changes = (weight.detach() / before - 1).abs()
    assert changes.max() <= 1.001 * BF16
    if weight.numel() > 10**6:  # more than one part of it
        assert changes.mean() == pytest.approx(BF16 / 2, rel=0.01)
        assert not torch.equal(weight[0] / before[0], weight[2048] / before[2048])


def test_copies_of_a_weight_change_alike_and_each_repeat_otherwise() -> None:
    one, copy, other = (nn.Parameter(torch.ones(4, 4)) for _ in range(3))
    Rounding(roundoff=BF16, seed=3).perturb(one)
    Rounding(roundoff=BF16, seed=3).perturb(copy)
    Rounding(roundoff=BF16, seed=4).perturb(other)

    assert torch.equal(one, copy)
    assert not torch.equal(one, other)


def _run_twice(worker: Worker, knobs: dict[str, Any]) -> tuple[Any, Any]:
    from workers.entry import run_trial

    request = a_request(a_spec(train={"precision": "bf16"}), precision="bf16", **knobs)
    perturbed = dataclasses.replace(request, number=7, perturbed=True)
    return run_trial(request, worker), run_trial(perturbed, worker)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "knobs",
    [
        {"zero_stage": 3},
        {"pipeline": 2, "data": 1},  # ends of tied weights
        {"tensor": 2, "data": 1},
        {"engine": "deepspeed", "zero_stage": 2},
    ],
    ids=["fsdp2", "pipeline", "tensor", "zero 2"],
)
def test_a_repeat_differs_by_rounding_alone(pair: Group, knobs: dict[str, Any]) -> None:
    (trial, repeat), *_ = pair.call(_run_twice, knobs)

    assert isinstance(trial, Measured), trial
    assert isinstance(repeat, Measured), repeat
    assert (trial.perturbed, repeat.perturbed) == (False, True)
    difference = max(loss_differences(repeat.losses, trial.losses))
    assert 0 < difference < TOLERANCE_HALF / ROUNDING_FACTOR
