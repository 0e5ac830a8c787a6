"""The learning rate, against transformers."""

from dataclasses import asdict

import pytest
import torch
from transformers import get_scheduler

from search_spaces.settings.optimizer import ScheduleSettings, render_schedule
from search_spaces.specification.sections import TrainSpec
from workers.plain_torch.update import make_scheduler, rate_factor


def a_train(schedule: str, warmup_steps: int, total_steps: int = 10) -> TrainSpec:
    return TrainSpec.model_validate(
        {
            "global_batch": 8,
            "learning_rate": 0.5,
            "schedule": schedule,
            "warmup_steps": warmup_steps,
            "total_steps": total_steps,
        }
    )


@pytest.mark.parametrize("warmup_steps", [0, 3])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_rates_are_those_of_transformers(schedule: str, warmup_steps: int) -> None:
    train = a_train(schedule, warmup_steps)
    name = "constant_with_warmup" if schedule == "constant" else schedule
    ours, theirs = (torch.optim.SGD([torch.zeros(1)], lr=train.learning_rate) for _ in range(2))
    rendered = ScheduleSettings(
        shape=train.schedule, warmup_steps=warmup_steps, total_steps=train.total_steps
    )
    our_schedule = make_scheduler(ours, **asdict(rendered))
    their_schedule = get_scheduler(
        name, theirs, num_warmup_steps=warmup_steps, num_training_steps=train.total_steps
    )
    for _ in range(train.total_steps):
        assert our_schedule.get_last_lr() == pytest.approx(their_schedule.get_last_lr())
        for optimizer, schedule_of_it in ((ours, our_schedule), (theirs, their_schedule)):
            optimizer.step()
            schedule_of_it.step()


def test_a_run_that_is_all_warm_up_divides_by_nothing() -> None:
    run = {"warmup_steps": 10, "total_steps": 10}

    assert [rate_factor(step, shape="cosine", **run) for step in (9, 10, 11)] == [0.9, 1.0, 0.0]


@pytest.mark.parametrize(
    ("schedule", "warmup_steps", "changes"),
    [("constant", 0, False), ("constant", 1, True), ("linear", 0, True)],
)
def test_a_constant_rate_needs_no_scheduler(
    schedule: str, warmup_steps: int, changes: bool
) -> None:
    assert (render_schedule(a_train(schedule, warmup_steps)) is not None) is changes
