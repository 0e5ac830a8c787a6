"""Bytes of model state on this rank's device, counted tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from search_spaces.settings.render import TorchSettings
from workers.engines.base import StateBytes


def state_bytes(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    settings: TorchSettings,
    device: torch.device,
) -> StateBytes:
    """Returns bytes of weights, gradients and optimizer states after a step.

    Gradients take as many bytes as the trained weights; twice that with DDP, unless they are
    views of its buckets. State offloaded to another device does not count.
    """
    has_own_buckets = settings.wrapper == "ddp" and not settings.gradient_as_bucket_view
    trained = [weight for weight in module.parameters() if weight.requires_grad]
    return StateBytes(
        weights=_bytes(module.parameters(), device),
        gradients=_bytes(trained, device) * (2 if has_own_buckets else 1),
        optimizer_states=_bytes(
            (
                value
                for state in optimizer.state.values()
                for value in state.values()
                if isinstance(value, torch.Tensor)
            ),
            device,
        ),
    )


def _bytes(tensors: Iterable[torch.Tensor], device: torch.device) -> int:
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return sum(
        tensor.numel() * tensor.element_size()
        for tensor in local
        if tensor.device.type == device.type
    )
