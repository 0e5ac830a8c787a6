"""The optimizer of a plan."""

from __future__ import annotations

import torch
from torch import nn

from search_spaces.plan import Optimizer
from search_spaces.spec.train_section import TrainSpec


def make_optimizer(module: nn.Module, kind: Optimizer, train: TrainSpec) -> torch.optim.Optimizer:
    """The optimizer of the weights that are trained."""
    return torch.optim.AdamW(
        [weight for weight in module.parameters() if weight.requires_grad],
        lr=train.learning_rate,
        weight_decay=train.weight_decay,
        fused=kind == "adamw_fused",
        foreach=kind == "adamw_foreach",
    )
