"""Clipping and schedule as in a plain loop; under fp16 all ranks skip an overflow."""

from functools import cache
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import get_scheduler

from search_spaces.trial import Crashed, Measured, TrialRequest
from tests.workers.launch import Group
from tests.workers.one_step import built
from tests.workers.test_same_training import (
    LOSS_TOLERANCE,
    MORE,
    WORST_STEP,
    _accumulate,
    reference_losses,
    reference_norm,
)
from tests.workers.values import STEPS, a_plan, a_request, a_spec, odd_model
from workers.engines.torch import autocast
from workers.models.load import build_whole
from workers.plain_torch.loss import loss_of
from workers.worker import Worker

MAX_NORM, WARMUP, TOTAL = 0.5, 2, 9
SPEC = a_spec(
    train={
        "grad_clip": MAX_NORM,
        "schedule": "cosine",
        "warmup_steps": WARMUP,
        "total_steps": TOTAL,
    }
)
FIRST_SCALE = 2.0**16  # torch.amp.GradScaler's


@cache
def clipped_losses() -> list[float]:
    """Losses of a plain loop in one process, with torch's clipping and transformers' schedule."""
    module = build_whole(SPEC.model, SPEC.train, attention="eager").module
    optimizer = torch.optim.AdamW(
        module.parameters(), lr=SPEC.train.learning_rate, weight_decay=SPEC.train.weight_decay
    )
    schedule = get_scheduler("cosine", optimizer, num_warmup_steps=WARMUP, num_training_steps=TOTAL)
    losses = []
    for step in range(WORST_STEP, STEPS):
        losses.append(_accumulate(module, step))
        torch.nn.utils.clip_grad_norm_(module.parameters(), MAX_NORM)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    return losses[1:]


@pytest.mark.parametrize(
    "zero_stage", [pytest.param(0, marks=MORE), pytest.param(2, marks=MORE), 3]
)
def test_losses_are_those_of_the_plain_loop_with_clipping_and_schedule(
    pair: Group, zero_stage: int
) -> None:
    outcome = pair.run(a_request(SPEC, zero_stage=zero_stage))

    assert isinstance(outcome, Measured)
    assert outcome.losses == pytest.approx(clipped_losses(), rel=LOSS_TOLERANCE)
    assert outcome.gradient_norm == pytest.approx(reference_norm(), rel=LOSS_TOLERANCE)


def test_without_clipping_and_schedule_the_losses_are_others() -> None:
    last = clipped_losses()[-1]

    assert abs(last - reference_losses()[-1]) > 100 * LOSS_TOLERANCE * last


def test_a_rank_that_fails_wakes_its_peer_though_the_scaler_talked_in_the_group(
    pair: Group,
) -> None:
    spec = SPEC.model_copy(
        update={"model": a_spec(model=odd_model("raises", rank=1, call=4)).model}
    )
    outcome = pair.run(a_request(spec, precision="fp16", micro_batch=4))

    assert isinstance(outcome, Crashed)
    assert (outcome.cause, outcome.rank) == ("exception", 1)
    pair.assert_trains()


def _overflow(worker: Worker, request: TrialRequest) -> dict[str, Any]:
    """A step in which one number of rank 1's gradient is infinite, then one without."""
    ours = built(worker, request)
    training, update = ours.training, ours.training.update
    given = ours.batches()
    before = _weights(ours.module)

    inputs = given.batches[0].on(worker.device)
    with autocast(training.settings, worker.device):
        loss = loss_of(training.module(**inputs))
    update.scale(loss).backward()
    if worker.ranks.rank == 1:
        gradient = next(training.module.parameters()).grad
        assert gradient is not None
        local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
        local.view(-1)[0] = float("inf")
    rate = update.optimizer.param_groups[0]["lr"]
    update.step()
    skipped = _weights(training.module)
    told = {
        "moved": [(before[name] - skipped[name]).abs().max().item() for name in before],
        "states": len(update.optimizer.state),
        "rates": (rate, update.optimizer.param_groups[0]["lr"]),
        "scale": update.scaler.get_scale(),
    }
    ours.step()
    after = {name: weight.numpy() for name, weight in _weights(training.module).items()}
    return told | {"after": after, "rate after": update.optimizer.param_groups[0]["lr"]}


def _weights(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().clone()
        for name, weight in module.named_parameters()
    }


@pytest.mark.parametrize(
    "zero_stage", [pytest.param(0, marks=MORE), 2, pytest.param(3, marks=MORE)]
)
def test_an_overflow_on_one_rank_skips_the_step_on_all(pair: Group, zero_stage: int) -> None:
    plan = a_plan(zero_stage=zero_stage, precision="fp16", micro_batch=4)

    told = pair.call(_overflow, TrialRequest(number=0, plan=plan, spec=SPEC))

    for rank in told:
        assert rank["moved"] == [0.0] * len(rank["moved"])
        assert rank["states"] == 0
        assert rank["rates"] == (0.0, 0.0)  # the schedule waits too
        assert rank["scale"] == FIRST_SCALE / 2
        assert rank["rate after"] == SPEC.train.learning_rate / WARMUP
    first, second = told
    for name, weight in first["after"].items():
        assert (weight == second["after"][name]).all(), name
