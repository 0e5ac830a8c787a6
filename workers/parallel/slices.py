"""Slices of weights as plain parameters, for what holds no DTensors."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement

_LAYOUT = "_plimsoll_slice_of"  # of a parameter: the mesh and the placements it was split by


def localize(module: nn.Module) -> None:
    """Makes plain parameters of all DTensors, which share their memory, in place."""

    def plain(weight: nn.Parameter) -> nn.Parameter:
        if not isinstance(weight, DTensor):
            return weight
        local = nn.Parameter(weight.to_local().detach(), requires_grad=weight.requires_grad)
        setattr(local, _LAYOUT, (weight.device_mesh, weight.placements))
        return local

    replace_weights(module, plain)


def as_distributed(weight: torch.Tensor, values: torch.Tensor | None = None) -> torch.Tensor:
    """A weight, or `values` laid out as it is (its gradient), as the DTensor it is a slice of.

    What is no slice, or is a DTensor already, is given back as it is.
    """
    values = weight if values is None else values
    layout: tuple[DeviceMesh, tuple[Placement, ...]] | None = getattr(weight, _LAYOUT, None)
    if layout is None:
        return values
    return DTensor.from_local(values.detach(), *layout, run_check=False)


def replace_weights(module: nn.Module, replacement: Callable[[nn.Parameter], nn.Parameter]) -> None:
    """Puts another parameter in the place of each, wherever it stands: what is tied stays tied."""
    known: dict[int, nn.Parameter] = {}
    kept = []  # an id is of use as long as what it is the id of lives
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                kept.append(weight)
                known.setdefault(id(weight), replacement(weight))
                part._parameters[name] = known[id(weight)]
