"""The learning rate over the steps of a run: one schedule for every engine."""

from __future__ import annotations

import functools
import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from search_spaces.spec.train_section import TrainSpec


def changes_rate(train: TrainSpec) -> bool:
    """Whether the learning rate is another one in some steps."""
    return train.schedule != "constant" or train.warmup_steps > 0


def make_scheduler(optimizer: Optimizer, train: TrainSpec) -> LambdaLR:
    """Sets the learning rate of the next step each time it is told that one is done.

    The step on the longest samples, which comes before those that are measured, is a step as
    any other.
    """
    return LambdaLR(optimizer, functools.partial(rate_factor, train=train))


def rate_factor(step: int, train: TrainSpec) -> float:
    """What `train.learning_rate` is multiplied with in optimizer step `step`, counted from 0.

    It rises from 0 during the warm-up, then stays, or falls to 0 at `total_steps`. Beyond that
    it stays at 0: weights no longer move, and a step takes as long as before.

    Source:
        transformers.get_scheduler, whose cosine would rise again beyond `total_steps`.
    """
    if step < train.warmup_steps:
        return step / train.warmup_steps
    falling = max(train.total_steps - train.warmup_steps, 1)
    done = min((step - train.warmup_steps) / falling, 1.0)
    match train.schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - done
        case "cosine":
            return (1.0 + math.cos(math.pi * done)) / 2
