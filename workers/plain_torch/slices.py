"""Slices of weights and gradients that a rank holds, as plain tensors and as DTensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

LAYOUT = "_plimsoll_slice_of"  # attribute of a parameter: its mesh and placements


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a tensor, detached from autograd; shares memory."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_weight(weight: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a weight and its gradient; shares memory."""
    if not isinstance(weight, DTensor):
        return weight
    local = local_tensor(weight)
    local.grad = None if weight.grad is None else local_tensor(weight.grad)
    return local


def as_distributed(weight: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """Returns the DTensor of which a weight is a slice, if `LAYOUT` says that it is one.

    Args:
        weight: A parameter.
        values: A tensor with the weight's layout, such as its gradient, to use instead of it.

    Returns:
        A DTensor; the tensor itself if it is not a slice or already a DTensor.
    """
    values = weight if values is None else values
    layout: tuple[DeviceMesh, tuple[Placement, ...]] | None = getattr(weight, LAYOUT, None)
    if layout is None:
        return values
    return DTensor.from_local(values.detach(), *layout, run_check=False)


def replace_weights(module: nn.Module, replacement: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Replaces each parameter of a module and its submodules; tied weights stay tied."""
    _replace([part._parameters for part in module.modules()], replacement)


def replace_buffers(module: nn.Module, replacement: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replaces each buffer of a module and its submodules; shared ones stay shared."""
    _replace([part._buffers for part in module.modules()], replacement)


def _replace(tables: list[dict[str, Any]], replacement: Callable[[Any], Any]) -> None:
    replacements: dict[int, Any] = {}
    originals = []  # keeps the old tensors alive, so that no id is reused
    for table in tables:
        for name, tensor in table.items():
            if tensor is not None:
                originals.append(tensor)
                if id(tensor) not in replacements:
                    replacements[id(tensor)] = replacement(tensor)
                table[name] = replacements[id(tensor)]
