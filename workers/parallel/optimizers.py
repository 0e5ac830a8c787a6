"""Optimizers of a plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from search_spaces.errors import missing_extra
from search_spaces.plan import Optimizer
from search_spaces.spec.sections import TrainSpec
from workers.parallel.split_modules import local_tensor

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def make_optimizer(module: nn.Module, kind: Optimizer, train: TrainSpec) -> torch.optim.Optimizer:
    """Makes the optimizer of the trained weights, with weight decay on all of them.

    Adafactor keeps sums over rows and columns of whole weights, so torch's takes no shards. Its
    learning rate is the upper bound of a step relative to the size of the weight.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    rates: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    match kind:
        case "adamw_fused":
            return torch.optim.AdamW(_groups(weights), fused=True, **rates)
        case "adamw_foreach":
            return torch.optim.AdamW(_groups(weights), foreach=True, **rates)
        case "adamw_8bit":
            return ShardedOptimizer(weights, lambda local: _eight_bit(local, rates), rates)
        case "adafactor":
            return torch.optim.Adafactor(weights, **rates)


def missing_for_eight_bit() -> str | None:
    """Returns the reason why 8-bit AdamW is missing, None if it is available."""
    return missing_extra("bitsandbytes")


def load_eight_bit() -> None:
    """Imports the library of 8-bit AdamW, so that it does not count towards a trial."""
    importlib.import_module("bitsandbytes.optim")


class ShardedOptimizer(torch.optim.Optimizer):
    """Runs an optimizer without DTensor support on this rank's part of each weight.

    Valid for optimizers that update elements independently, or in blocks as 8-bit ones do.
    """

    def __init__(self, weights: list[nn.Parameter], make: Make, defaults: dict[str, Any]) -> None:
        super().__init__(weights, defaults)
        self._local_weights = [nn.Parameter(local_tensor(weight)) for weight in weights]
        self._inner = make(self._local_weights)
        self.state = self._inner.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        (group,) = self.param_groups
        for weight, local in zip(group["params"], self._local_weights, strict=True):
            local.grad = None if weight.grad is None else local_tensor(weight.grad)
        for inner in self._inner.param_groups:
            inner["lr"] = group["lr"]
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of this rank's local weights, in their order."""
        return self._inner.state_dict()


def _groups(weights: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    # one kernel takes only weights of the same sharding
    by_sharding: dict[object, list[nn.Parameter]] = {}
    for weight in weights:
        sharding = (weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else None
        by_sharding.setdefault(sharding, []).append(weight)
    return [{"params": group} for group in by_sharding.values()]


def _eight_bit(weights: list[nn.Parameter], rates: dict[str, Any]) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(weights, **rates)
    return optimizer
