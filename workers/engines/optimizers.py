"""The optimizer of a plan."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from search_spaces.errors import extra_lack
from search_spaces.plan import Optimizer
from search_spaces.spec.sections import TrainSpec
from workers.engines.optimizer_step import local_tensor

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def make_optimizer(module: nn.Module, kind: Optimizer, train: TrainSpec) -> torch.optim.Optimizer:
    """The optimizer of the weights that are trained; all of them decay.

    Adafactor keeps sums over rows and columns of whole weights: torch's cannot take shards.
    Its learning rate is the most that a step may be, relative to the weight's own size.
    """
    weights = [weight for weight in module.parameters() if weight.requires_grad]
    rates: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    match kind:
        case "adamw_fused":
            return torch.optim.AdamW(_groups(weights), fused=True, **rates)
        case "adamw_foreach":
            return torch.optim.AdamW(_groups(weights), foreach=True, **rates)
        case "adamw_8bit":
            return OnShards(weights, lambda local: _eight_bit(local, rates), rates)
        case "adafactor":
            return torch.optim.Adafactor(weights, **rates)


def eight_bit_lack() -> str | None:
    """Why there is no 8-bit AdamW, None if there is."""
    return extra_lack("bitsandbytes")


def load_eight_bit() -> None:
    """Loads 8-bit AdamW, whose library belongs to the process and to no trial."""
    importlib.import_module("bitsandbytes.optim")


class OnShards(torch.optim.Optimizer):
    """An optimizer that knows no DTensor, working on what this rank holds of each weight.

    Right for optimizers that treat each number by itself, or blocks of them as 8-bit ones do.
    """

    def __init__(self, weights: list[nn.Parameter], make: Make, defaults: dict[str, Any]) -> None:
        super().__init__(weights, defaults)
        self._held = [nn.Parameter(local_tensor(weight)) for weight in weights]
        self._inner = make(self._held)
        self.state = self._inner.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        (group,) = self.param_groups
        for weight, held in zip(group["params"], self._held, strict=True):
            held.grad = None if weight.grad is None else local_tensor(weight.grad)
        for inner in self._inner.param_groups:
            inner["lr"] = group["lr"]
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Of what this rank holds: the states belong to local weights, in the order of these."""
        return self._inner.state_dict()


def _groups(weights: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Weights that one kernel can take together: sharded alike over the same ranks."""
    alike: dict[object, list[nn.Parameter]] = {}
    for weight in weights:
        sharding = (weight.device_mesh, weight.placements) if isinstance(weight, DTensor) else None
        alike.setdefault(sharding, []).append(weight)
    return [{"params": group} for group in alike.values()]


def _eight_bit(weights: list[nn.Parameter], rates: dict[str, Any]) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(weights, **rates)
    return optimizer
