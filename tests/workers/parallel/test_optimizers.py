"""Optimizers of a plan: the same update however weights are split, and their states."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from search_spaces.errors import missing_extra
from search_spaces.trial import Measured
from tests.workers.launch import Group
from tests.workers.test_same_training import (
    HYBRID,
    LOSS_TOLERANCE,
    OFFLOAD,
    SPEC,
    WORST_STEP,
    _accumulate,
    reference_losses,
)
from tests.workers.values import STEPS, a_request
from workers.models.load import build_whole

EIGHT_BIT_TOLERANCE = 0.05  # relative; 8-bit states keep 2 digits
needs_8bit = pytest.mark.skipif(
    missing_extra("bitsandbytes") is not None, reason=str(missing_extra("bitsandbytes"))
)


def measured(groups: Any, **knobs: Any) -> Measured:
    group: Group = groups.of(knobs.get("data", 2))
    outcome = group.run(a_request(SPEC, **knobs))
    assert isinstance(outcome, Measured), outcome
    return outcome


@cache
def adafactor_losses() -> list[float]:
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    optimizer = torch.optim.Adafactor(module.parameters(), lr=SPEC.train.learning_rate)
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        optimizer.step()
        optimizer.zero_grad()
    return losses[1:]


def test_adafactor_trains_as_in_a_plain_loop_and_keeps_little(groups: Any) -> None:
    outcome = measured(groups, optimizer="adafactor")

    assert outcome.losses == pytest.approx(adafactor_losses(), rel=LOSS_TOLERANCE)
    anatomy = outcome.memory.anatomy
    assert 0 < anatomy.optimizer_states < 0.1 * anatomy.weights  # AdamW: twice the weights


@needs_8bit
@pytest.mark.parametrize(
    "knobs",
    [
        {},
        *(
            pytest.param(knobs, marks=pytest.mark.thorough)
            for knobs in ({"zero_stage": 3}, HYBRID, OFFLOAD)
        ),
    ],
    ids=str,
)
def test_8_bit_adamw_trains_nearly_as_adamw_on_whole_weights_and_on_shards(
    groups: Any, knobs: dict[str, Any]
) -> None:
    outcome = measured(groups, optimizer="adamw_8bit", **knobs)

    assert outcome.losses == pytest.approx(reference_losses(), rel=EIGHT_BIT_TOLERANCE)
    assert outcome.losses != pytest.approx(reference_losses(), rel=LOSS_TOLERANCE)
    anatomy = outcome.memory.anatomy
    # two bytes a weight of 4; small ones and small shards (below 4096 numbers) keep 32 bits
    assert 0.5 < anatomy.optimizer_states / anatomy.weights < (1.9 if knobs else 0.8)
