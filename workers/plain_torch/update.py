"""Gradient clipping, loss scaling, learning-rate schedule and the update of the weights."""

import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from workers.plain_torch.slices import as_distributed, local_tensor, local_weight


def make_scheduler(
    optimizer: torch.optim.Optimizer, *, shape: str, warmup_steps: int, total_steps: int
) -> LambdaLR:
    """Returns the scheduler of the learning rate: see `rate_factor`."""
    factor = functools.partial(
        rate_factor, shape=shape, warmup_steps=warmup_steps, total_steps=total_steps
    )
    return LambdaLR(optimizer, factor)


def rate_factor(step: int, *, shape: str, warmup_steps: int, total_steps: int) -> float:
    """Returns the factor of the learning rate in optimizer step `step`, counted from 0.

    It rises from 0 during the warm-up, then stays at 1 or falls to 0 at `total_steps`. Beyond
    that it stays at 0: weights no longer move, but a step takes as long as before.

    Args:
        step: The step.
        shape: constant, linear or cosine.
        warmup_steps: Steps of the warm-up.
        total_steps: Steps of the training, with the warm-up.

    Source:
        transformers.get_scheduler, whose cosine would rise again beyond `total_steps`.
    """
    if step < warmup_steps:
        return step / warmup_steps
    if shape == "constant":
        return 1.0
    done = min((step - warmup_steps) / max(total_steps - warmup_steps, 1), 1.0)
    return 1.0 - done if shape == "linear" else (1.0 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientNorm:
    """Computes the norm of a gradient that ranks hold in parts, as in one process.

    Attributes:
        group: The ranks that train together, None for a single rank.
        holders: Those of them that hold the same gradient, if it is no DTensor.
        device: Device of the collective; gradients may lie in host memory.
        counted_elsewhere: Weights of this rank's stage whose gradient another stage counts,
            because they are tied (an embedding and the head).
    """

    group: dist.ProcessGroup | None
    holders: int
    device: torch.device
    counted_elsewhere: tuple[nn.Parameter, ...] = ()

    @torch.no_grad()
    def of(self, weights: Iterable[torch.Tensor]) -> torch.Tensor:
        """Returns the norm of the gradient over all weights of the model, the same on all ranks.

        All ranks call it together. Each contributes the square of its gradients, divided by the
        number of ranks that hold the same piece. One sum over all ranks then covers shards, slices,
        replicas and stages.
        """
        excluded = {id(weight) for weight in self.counted_elsewhere}
        by_holders: dict[int, list[torch.Tensor]] = defaultdict(list)
        for weight in weights:
            if weight.grad is not None and id(weight) not in excluded:
                holders = self._holders_of(as_distributed(weight, weight.grad))
                by_holders[holders].append(local_tensor(weight.grad))
        squares = torch.zeros((), dtype=torch.float64, device=self.device)
        for holders, gradients in by_holders.items():
            # in fp32, since a sum of squares in 16 bits keeps 2 digits
            lengths = torch._foreach_norm(gradients, 2, torch.float32)
            total = sum(one.to(self.device, torch.float64).square() for one in lengths)
            squares += total / holders
        if self.group is not None:
            dist.all_reduce(squares, group=self.group)
        return squares.sqrt().float()

    def _holders_of(self, gradient: torch.Tensor) -> int:
        """Number of ranks that hold the same piece as this one; stages share no gradients."""
        if not isinstance(gradient, DTensor):
            return self.holders
        pieces = math.prod(
            gradient.device_mesh.size(dimension)
            for dimension, placement in enumerate(gradient.placements)
            if not placement.is_replicate()
        )
        return self.holders // pieces


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """Clips gradients by their norm, at most `max_norm`, as `clip_grad_norm_` in one process."""

    max_norm: float
    norm: GradientNorm

    def apply(self, weights: Iterable[torch.Tensor]) -> None:
        """Scales the gradients in place, on all ranks by the same factor."""
        weights = list(weights)
        norm = self.norm.of(weights)
        # local tensors, since torch does not take shards of several meshes in one call
        clip_grads_with_norm_(map(local_weight, weights), self.max_norm, norm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Applies complete gradients to the weights: unscaled, clipped, then stepped.

    If a gradient overflows fp16 on any rank, all ranks skip the step: weights and learning rate
    stay, and the loss scale is halved.
    """

    optimizer: torch.optim.Optimizer
    schedule: LRScheduler | None = None
    clipping: Clipping | None = None
    scaler: GradScaler | None = None

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Scales the loss for backward."""
        return loss if self.scaler is None else self.scaler.scale(loss)

    def step(self) -> None:
        """Updates the weights and clears the gradients; all ranks call it together."""
        weights = trained_weights(self.optimizer)
        if self.scaler is None:
            self._apply(weights)
        else:
            guarded = GuardedStep(
                param_groups=[{"params": [local_weight(weight) for weight in weights]}],
                step=lambda: self._apply(weights),
            )
            self.scaler.step(guarded)  # type: ignore[arg-type]  # has what the scaler uses
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def _apply(self, weights: Iterable[torch.Tensor]) -> None:
        if self.clipping is not None:
            self.clipping.apply(weights)
        self.optimizer.step()
        if self.schedule is not None:
            self.schedule.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedStep:
    """The optimizer as the scaler sees it: gradients of local weights, and a step to skip.

    The scaler's kernels do not mix shards of several meshes. A fused optimizer would check the
    gradients a second time.
    """

    param_groups: list[dict[str, Any]]
    step: Callable[[], None]


def trained_weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the optimizer's weights that have a gradient, after reducing partial gradients.

    Tensor parallelism can leave partial sums in a gradient.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        if isinstance(weight.grad, DTensor) and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)
    return [weight for weight in weights if weight.grad is not None]


def make_scaler(group: dist.ProcessGroup | None, device: torch.device) -> GradScaler:
    """Makes the dynamic loss scale of fp16, one for all ranks of `group` (None: a single rank)."""
    scaler = (
        GradScaler(device.type)
        if group is None
        else ShardedGradScaler(device.type, process_group=group)
    )
    # the first loss creates its tensors, but the first stages of a pipeline never see a loss
    scaler.scale(torch.zeros((), device=device))
    return scaler
