"""Bytes of model state on this rank's device, counted tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def weight_bytes(module: nn.Module) -> int:
    """What the weights take, frozen ones too."""
    return _bytes(module.parameters())


def gradient_bytes(module: nn.Module) -> int:
    """What the gradients of a backward pass take: as much as the weights that have one."""
    return _bytes(weight for weight in module.parameters() if weight.requires_grad)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """What the optimizer keeps from one step to the next."""
    return _bytes(
        value
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, torch.Tensor)
    )


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(tensor.numel() * tensor.element_size() for tensor in local)
