"""Optimizers, and which weights decay."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from workers.plain_torch.slices import local_tensor

# Lower-case names of weights that do not decay under decay "stock", beside all weights of torch's
# LayerNorm. Source: transformers.Trainer.get_decay_parameter_names (5.23)
UNDECAYED_NAMES = r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)"
ParameterGroup = dict[str, Any]  # of torch: `params`, and settings that differ from the defaults
Make = Callable[[list[ParameterGroup]], torch.optim.Optimizer]


def make_optimizer(
    module: nn.Module, *, kind: str, learning_rate: float, weight_decay: float, decay: str
) -> torch.optim.Optimizer:
    """Makes the optimizer of the trained weights.

    Adafactor keeps sums over rows and columns of whole weights, so torch's takes no shards. Its
    learning rate is the upper bound of a step relative to the size of the weight.

    Args:
        module: The model.
        kind: adamw_fused, adamw_foreach, adamw_8bit, adafactor, or adamw_cpu (DeepSpeed's, for
            states in host memory).
        learning_rate: Learning rate.
        weight_decay: Weight decay, of the weights that decay.
        decay: Which do: all, or stock (all but biases and norms).

    Raises:
        ValueError: If there is no such optimizer.
    """
    groups = decay_groups(module, decay)
    rates: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    if kind == "adamw_fused":
        return torch.optim.AdamW(by_sharding(groups), fused=True, **rates)
    if kind == "adamw_foreach":
        return torch.optim.AdamW(by_sharding(groups), foreach=True, **rates)
    if kind == "adamw_8bit":
        return ShardedOptimizer(groups, lambda local: eight_bit_adamw(local, rates), rates)
    if kind == "adafactor":
        return torch.optim.Adafactor(groups, **rates)
    if kind == "adamw_cpu":
        return cpu_adamw(groups, rates)
    raise ValueError(f"there is no optimizer {kind!r}")


def decay_groups(module: nn.Module, decay: str) -> list[ParameterGroup]:
    """Returns the trained weights: those that decay, then those that do not; no empty group.

    Source:
        transformers.Trainer.get_decay_parameter_names, for decay "stock".
    """
    trained = {name: one for name, one in module.named_parameters() if one.requires_grad}
    if decay == "all":
        return [{"params": list(trained.values())}]
    norms = {name for name, part in module.named_modules() if isinstance(part, nn.LayerNorm)}
    decaying, others = list[nn.Parameter](), list[nn.Parameter]()
    for name, weight in trained.items():
        is_left_out = name.rpartition(".")[0] in norms or re.search(UNDECAYED_NAMES, name.lower())
        (others if is_left_out else decaying).append(weight)
    groups: list[ParameterGroup] = [{"params": decaying}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def by_sharding(groups: list[ParameterGroup]) -> list[ParameterGroup]:
    """Splits groups by the sharding of their weights: one kernel takes only those of the same."""
    split = list[ParameterGroup]()
    for group in groups:
        alike = defaultdict[object, list[nn.Parameter]](list)
        for one in group["params"]:
            alike[(one.device_mesh, one.placements) if isinstance(one, DTensor) else None].append(
                one
            )
        split += [group | {"params": weights} for weights in alike.values()]
    return split


class ShardedOptimizer(torch.optim.Optimizer):
    """Runs an optimizer without DTensor support on this rank's part of each weight.

    Valid for optimizers that update elements independently, or in blocks as 8-bit ones do.
    """

    def __init__(self, groups: list[ParameterGroup], make: Make, defaults: dict[str, Any]) -> None:
        super().__init__(groups, defaults)
        self._inner = make(
            [
                group | {"params": [nn.Parameter(local_tensor(one)) for one in group["params"]]}
                for group in groups
            ]
        )
        self.state = self._inner.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            inner["lr"] = group["lr"]
            for weight, local in zip(group["params"], inner["params"], strict=True):
                local.grad = None if weight.grad is None else local_tensor(weight.grad)
        self._inner.step()
        self._inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of this rank's local weights, in their order."""
        return self._inner.state_dict()


def eight_bit_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes bitsandbytes' AdamW."""
    from bitsandbytes.optim import AdamW8bit

    optimizer: torch.optim.Optimizer = AdamW8bit(groups, **rates)
    return optimizer


def cpu_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes DeepSpeed's AdamW for weights in host memory."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(groups, adamw_mode=True, **rates)
    return optimizer
