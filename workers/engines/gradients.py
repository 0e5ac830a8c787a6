"""Gradients of all ranks as one vector: how long it is, and how it is cut to a length."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from workers.parallel.slices import as_distributed
from workers.process_groups import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """Cuts gradients to a length, as `torch.nn.utils.clip_grad_norm_` does for one process.

    `counted_elsewhere` are weights of this rank's stage whose gradient another stage counts,
    since they are one weight (an embedding tied to the head).
    """

    max_norm: float
    mesh: Mesh | None
    device: torch.device
    counted_elsewhere: tuple[nn.Parameter, ...] = ()

    def apply(self, weights: Iterable[torch.Tensor]) -> None:
        """Cuts the gradients in place, on all ranks by the same factor."""
        held = list(weights)
        norm = global_norm(held, self.mesh, self.device, self.counted_elsewhere)
        # local tensors, since one call of torch cannot take shards of several meshes
        clip_grads_with_norm_(map(local_weight, held), self.max_norm, norm)


def trained_weights(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The optimizer's weights that have a gradient, each with a whole sum in it.

    Tensor parallelism can leave a gradient as parts that are still to be added up.
    """
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    for weight in weights:
        if isinstance(weight.grad, DTensor) and weight.grad.placements != weight.placements:
            weight.grad = weight.grad.redistribute(placements=weight.placements)
    return [weight for weight in weights if weight.grad is not None]


def local_weight(weight: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a weight, with what it holds of its gradient; shares memory."""
    if not isinstance(weight, DTensor):
        return weight
    local = local_tensor(weight)
    local.grad = None if weight.grad is None else local_tensor(weight.grad)
    return local


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor, apart from autograd; shares memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def global_norm(
    weights: Iterable[torch.Tensor],
    mesh: Mesh | None,
    device: torch.device,
    counted_elsewhere: Iterable[torch.Tensor] = (),
) -> torch.Tensor:
    """Length of the gradient over all weights of the model, the same number on all ranks.

    All ranks of the trial call it together. Each adds the square of what it holds, divided by
    how many ranks hold the same; one sum over all of them so covers shards, slices, replicas
    and stages.

    Args:
        weights: Weights of this rank that have a gradient.
        mesh: The ranks that train together, None for one alone.
        device: Where ranks talk; gradients may lie in host memory.
        counted_elsewhere: Those of the weights that another stage counts.

    Returns:
        A scalar on the device.
    """
    left_out = {id(weight) for weight in counted_elsewhere}
    by_holders: dict[int, list[torch.Tensor]] = defaultdict(list)
    for weight in weights:
        if weight.grad is not None and id(weight) not in left_out:
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
    """How many ranks hold the same piece as this one; each stage has gradients of its own."""
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
