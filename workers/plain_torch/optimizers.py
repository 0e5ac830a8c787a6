"""Optimizers, and which weights decay."""

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
    module: nn.Module,
    *,
    kind: str,
    learning_rate: float,
    weight_decay: float,
    decay: str,
    momentum: float | None = None,
    betas: tuple[float, float] | None = None,
    eps: float | None = None,
) -> torch.optim.Optimizer:
    """Makes the optimizer of the trained weights.

    Adafactor keeps sums over rows and columns of whole weights, so torch's takes no shards. Its
    learning rate is the upper bound of a step relative to the size of the weight.

    Args:
        module: The model.
        kind: adamw_fused, adamw_foreach, adamw_8bit, adamw_8bit_paged, adafactor, sgd, lion, muon,
            adamw_cpu (DeepSpeed's, for states in host memory), or adamw_stochastic (of bf16
            weights).
        learning_rate: Learning rate.
        weight_decay: Weight decay, of the weights that decay.
        decay: Which do: all, or stock (all but biases and norms).
        momentum: Of sgd and muon; None for torch's default, as of the others.
        betas: Of AdamW and Lion.
        eps: Of AdamW.

    Raises:
        ValueError: If there is no such optimizer, or no weight for muon.
    """
    groups = decay_groups(module, decay)
    shared: dict[str, Any] = {"lr": learning_rate, "weight_decay": weight_decay}
    rates = shared | ({"betas": betas} if betas else {}) | ({"eps": eps} if eps else {})
    moving = shared | ({} if momentum is None else {"momentum": momentum})
    if kind == "adamw_fused":
        return torch.optim.AdamW(by_sharding(groups), fused=True, **rates)
    if kind == "adamw_foreach":
        return torch.optim.AdamW(by_sharding(groups), foreach=True, **rates)
    by_part = {"adamw_8bit": eight_bit_adamw, "adamw_8bit_paged": paged_adamw}
    by_part |= {"adamw_stochastic": stochastic_adamw}
    if kind in by_part:
        return ShardedOptimizer(groups, lambda local: by_part[kind](local, rates), rates)
    if kind == "adafactor":
        return torch.optim.Adafactor(groups, **shared)
    if kind == "sgd":
        return torch.optim.SGD(by_sharding(groups), foreach=True, **moving)
    if kind == "lion":
        return Lion(groups, **rates)
    if kind == "muon":
        return MuonAndAdamW(module, groups, muon=moving, adamw=rates)
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

    Valid for optimizers that update elements independently, or in blocks as 8-bit ones do. What a
    step draws depends on its number alone, so that replicas of a weight stay equal.
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
        self._steps = 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        for group, inner in zip(self.param_groups, self._inner.param_groups, strict=True):
            if isinstance(inner["lr"], torch.Tensor):  # torchao compiles its update with it
                inner["lr"].fill_(group["lr"])
            else:
                inner["lr"] = group["lr"]
            for weight, local in zip(group["params"], inner["params"], strict=True):
                local.grad = None if weight.grad is None else local_tensor(weight.grad)
        on_cuda = torch.cuda.is_available()
        with torch.random.fork_rng([torch.cuda.current_device()] if on_cuda else []):
            torch.manual_seed(self._steps)
            self._inner.step()
        self._steps += 1
        self._inner.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Any]:
        """Returns the states of this rank's local weights, in their order."""
        return self._inner.state_dict()


class Lion(torch.optim.Optimizer):
    """Moves each weight by the sign of its momentum.

    Source:
        Chen et al. 2023, arXiv:2302.06675, program 1.
    """

    def __init__(
        self,
        groups: list[ParameterGroup],
        lr: float,
        weight_decay: float,
        betas: tuple[float, float] = (0.9, 0.99),
    ) -> None:
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "betas": betas})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        for group in self.param_groups:
            first, second = group["betas"]
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if "momentum" not in self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
                momentum = self.state[weight]["momentum"]
                update = momentum.mul(first).add_(weight.grad, alpha=1 - first).sign_()
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-group["lr"])
                momentum.mul_(second).add_(weight.grad, alpha=1 - second)


class MuonAndAdamW(torch.optim.Optimizer):
    """Updates matrices in numbered blocks by Muon, other weights by AdamW, at one learning rate.

    Muon's updates get the size of AdamW's. Embeddings are AdamW's wherever they are.

    Source:
        Liu et al. 2025, arXiv:2502.16982, section 2.2 (`match_rms_adamw` of torch.optim.Muon).
    """

    def __init__(
        self,
        module: nn.Module,
        groups: list[ParameterGroup],
        *,
        muon: dict[str, Any],
        adamw: dict[str, Any],
    ) -> None:
        tables = {id(one.weight) for one in module.modules() if isinstance(one, nn.Embedding)}
        hidden = {
            id(weight)
            for name, weight in module.named_parameters()
            if weight.dim() == 2 and id(weight) not in tables and re.search(r"(^|\.)\d+\.", name)
        }
        matrices, others = (
            [
                group | {"params": weights}
                for group in groups
                if (weights := [one for one in group["params"] if (id(one) in hidden) == is_muons])
            ]
            for is_muons in (True, False)
        )
        if not matrices:
            raise ValueError("muon is for matrices in numbered blocks, and this model trains none")
        self._inner: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, adjust_lr_fn="match_rms_adamw", **muon)
        ]
        if others:
            self._inner.append(torch.optim.AdamW(others, **adamw))
        super().__init__([group for one in self._inner for group in one.param_groups], {})
        for one in self._inner:
            one.state = self.state
        # the same objects, so that a schedule reaches both
        self.param_groups = [group for one in self._inner for group in one.param_groups]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # none is ever given
        for one in self._inner:
            one.step()


def eight_bit_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes bitsandbytes' AdamW."""
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(groups, **rates)


def paged_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes bitsandbytes' AdamW whose states CUDA moves to host memory where it has no room."""
    from bitsandbytes.optim import PagedAdamW8bit

    return PagedAdamW8bit(groups, **rates)


def stochastic_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes torchao's AdamW, which rounds weights in bf16 up or down by chance, right on average.

    It compiles the update of each shape of a weight, and has neither fused nor foreach kernels.
    """
    from torchao.optim import _AdamW

    return _AdamW(groups, bf16_stochastic_round=True, **rates)


def cpu_adamw(groups: list[ParameterGroup], rates: dict[str, Any]) -> torch.optim.Optimizer:
    """Makes DeepSpeed's AdamW for weights in host memory."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(groups, adamw_mode=True, **rates)
