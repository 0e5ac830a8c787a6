"""Micro-batches of a user's function are weighted by their targets, over all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from search_spaces.trial import Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.odd_models import make_answering
from tests.workers.values import GLOBAL_BATCH, STEPS, a_plan, a_spec
from workers.models.built import seeded

TOLERANCE = 2e-5


def spec_of(**config: Any) -> Any:
    model = {"name": "tests.workers.odd_models:make_answering", "config": config}
    return a_spec(model=model, train={"learning_rate": 3e-3})


def plain_losses(seed: int, steps: int) -> list[float]:
    """Returns the mean losses over all labels of a step, one sample at a time."""
    with seeded(seed):
        net, batch = make_answering()
    train = spec_of().train
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=train.learning_rate, weight_decay=train.weight_decay
    )
    losses = []
    for step in range(-1, steps):
        numbers = range(max(step, 0) * GLOBAL_BATCH, (max(step, 0) + 1) * GLOBAL_BATCH)
        counts = [int((batch((n,))["labels"][:, 1:] != -100).sum()) for n in numbers]
        loss = 0.0
        for number, count in zip(numbers, counts, strict=True):
            part = net(**batch((number,))).loss * count / sum(counts)
            part.backward()
            loss += part.item()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
    return losses[1:]  # a trial keeps those after its worst step


@pytest.mark.parametrize(
    ("knobs", "says_targets"),
    [
        ({"micro_batch": 2, "zero_stage": 3}, True),
        *(
            pytest.param(*case, marks=pytest.mark.thorough)
            for case in (
                ({"micro_batch": 4}, False),
                ({"micro_batch": 1}, True),
                ({"micro_batch": 2, "engine": "deepspeed", "zero_stage": 2}, False),
            )
        ),
    ],
    ids=str,
)
def test_every_plan_trains_the_mean_over_all_labels(
    pair: Group, knobs: dict[str, Any], says_targets: bool
) -> None:
    spec = spec_of(says_targets=says_targets)
    outcome = pair.run(TrialRequest(number=0, plan=a_plan(**knobs), spec=spec))

    assert isinstance(outcome, Measured), outcome
    expected = plain_losses(spec.train.seed, STEPS)
    assert outcome.losses == pytest.approx(expected, rel=TOLERANCE)
