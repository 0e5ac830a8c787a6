"""Gradient clipping, loss scaling, learning-rate schedule and the update of the weights."""

from __future__ import annotations

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
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from search_spaces.plan import Precision
from search_spaces.spec.sections import TrainSpec
from workers.parallel.split_modules import as_distributed, local_tensor
from workers.process_groups import Mesh


def has_schedule(train: TrainSpec) -> bool:
    """True if the learning rate is not the same in all steps."""
    return train.schedule != "constant" or train.warmup_steps > 0


def make_scheduler(optimizer: Optimizer, train: TrainSpec) -> LambdaLR:
    """Returns the scheduler of the learning rate.

    The step on the longest samples, which comes before the measured steps, counts as a step.
    """
    return LambdaLR(optimizer, functools.partial(rate_factor, train=train))


def rate_factor(step: int, train: TrainSpec) -> float:
    """Returns the factor of `train.learning_rate` in optimizer step `step`, counted from 0.

    It rises from 0 during the warm-up, then stays at 1 or falls to 0 at `total_steps`. Beyond
    that it stays at 0: weights no longer move, but a step takes as long as before.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """Clips gradients by their global norm, as `torch.nn.utils.clip_grad_norm_` in one process.

    `counted_elsewhere` are weights of this rank's stage whose gradient another stage counts,
    because they are tied (an embedding and the head).
    """

    max_norm: float
    mesh: Mesh | None
    device: torch.device
    counted_elsewhere: tuple[nn.Parameter, ...] = ()

    def apply(self, weights: Iterable[torch.Tensor]) -> None:
        """Scales the gradients in place, on all ranks by the same factor."""
        weights = list(weights)
        norm = global_norm(weights, self.mesh, self.device, self.counted_elsewhere)
        # local tensors, since torch does not take shards of several meshes in one call
        clip_grads_with_norm_(map(local_weight, weights), self.max_norm, norm)


def trained_weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns the optimizer's weights that have a gradient, after reducing partial gradients.

    Tensor parallelism can leave partial sums in a gradient.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        if isinstance(weight.grad, DTensor) and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)
    return [weight for weight in weights if weight.grad is not None]


def local_weight(weight: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a weight and its gradient; shares memory."""
    if not isinstance(weight, DTensor):
        return weight
    local = local_tensor(weight)
    local.grad = None if weight.grad is None else local_tensor(weight.grad)
    return local


@torch.no_grad()
def global_norm(
    weights: Iterable[torch.Tensor],
    mesh: Mesh | None,
    device: torch.device,
    counted_elsewhere: Iterable[torch.Tensor] = (),
) -> torch.Tensor:
    """Returns the norm of the gradient over all weights of the model, the same on all ranks.

    All ranks of the trial call it together. Each contributes the square of its gradients, divided
    by the number of ranks that hold the same piece. One sum over all ranks then covers shards,
    slices, replicas and stages.

    Args:
        weights: Weights of this rank that have a gradient.
        mesh: The ranks that train together, None for a single rank.
        device: Device of the collective; gradients may lie in host memory.
        counted_elsewhere: Those of the weights that another stage counts.

    Returns:
        A scalar on the device.
    """
    excluded = {id(weight) for weight in counted_elsewhere}
    by_holders: dict[int, list[torch.Tensor]] = defaultdict(list)
    for weight in weights:
        if weight.grad is not None and id(weight) not in excluded:
            by_holders[_holders(as_distributed(weight, weight.grad), mesh)].append(
                local_tensor(weight.grad)
            )
    squares = torch.zeros((), dtype=torch.float64, device=device)
    for holders, gradients in by_holders.items():
        length = get_total_norm(gradients).to(device=device, dtype=torch.float64)
        squares += length.square() / holders
    if mesh is not None:
        dist.all_reduce(squares, group=mesh.group)
    return squares.sqrt().float()


def _holders(gradient: torch.Tensor, mesh: Mesh | None) -> int:
    """Number of ranks that hold the same piece as this one; stages share no gradients."""
    if mesh is None:
        return 1
    ranks = mesh.size("replicate", "shard", "tensor")
    if not isinstance(gradient, DTensor):
        return ranks
    pieces = math.prod(
        gradient.device_mesh.size(dimension)
        for dimension, placement in enumerate(gradient.placements)
        if not placement.is_replicate()
    )
    return ranks // pieces


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
            guarded = _Guarded(
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
class _Guarded:
    """The optimizer as the scaler sees it: gradients of local weights, and a step to skip.

    The scaler's kernels do not mix shards of several meshes. A fused optimizer would check the
    gradients a second time.
    """

    param_groups: list[dict[str, Any]]
    step: Callable[[], None]


def make_update(
    optimizer: torch.optim.Optimizer,
    train: TrainSpec,
    compute: Precision,
    mesh: Mesh | None,
    device: torch.device,
    *,
    counted_elsewhere: tuple[nn.Parameter, ...] = (),
) -> Update:
    """Makes the update with the spec's clipping and schedule.

    Args:
        optimizer: Optimizer of this rank's weights.
        train: Clipping and learning-rate schedule.
        compute: Precision; fp16 adds loss scaling.
        mesh: The ranks that train together, None for a single rank.
        device: Device of the collectives.
        counted_elsewhere: Tied weights of this rank that another stage counts in the norm of the
            gradient. Both stages must hold the sum of the gradients.
    """
    clipping = None
    if train.grad_clip is not None:
        clipping = Clipping(
            max_norm=train.grad_clip, mesh=mesh, device=device, counted_elsewhere=counted_elsewhere
        )
    return Update(
        optimizer=optimizer,
        schedule=make_scheduler(optimizer, train) if has_schedule(train) else None,
        clipping=clipping,
        scaler=_make_scaler(mesh, device) if compute == "fp16" else None,
    )


def _make_scaler(mesh: Mesh | None, device: torch.device) -> GradScaler:
    scaler = (
        GradScaler(device.type)
        if mesh is None
        else ShardedGradScaler(device.type, process_group=mesh.group)
    )
    # the first loss creates its tensors, but the first stages of a pipeline never see a loss
    scaler.scale(torch.zeros((), device=device))
    return scaler
