"""Mixtures of experts: parameters active for a token, and sizes of grouped products.

A layer of experts in transformers stacks the weights of all experts in one parameter, with the
expert as its first dimension. A router sends each token to `num_experts_per_tok` of them.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

_STACKED = 3  # dimensions of a weight: experts, outputs, inputs
_MATRIX = 2  # dimensions; three are a stack of matrices, one for each expert


def expert_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules that hold the weights of all experts of a layer."""
    for part in module.modules():
        count = getattr(part, "num_experts", None)
        if isinstance(count, int) and any(
            weight.dim() == _STACKED and len(weight) == count
            for weight in part.parameters(recurse=False)
        ):
            yield part


def active_parameters(module: nn.Module) -> int | None:
    """Returns the number of parameters that one token uses.

    None for a model without experts, where a token uses all, and for a model whose
    configuration does not state the number of experts for a token.
    """
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    per_token = getattr(config, "num_experts_per_tok", None)
    layers = list(expert_layers(module))
    if not layers or not isinstance(per_token, int):
        return None
    idle = sum(_parameters(layer) * (1 - min(per_token / _count(layer), 1)) for layer in layers)
    return round(_parameters(module) - idle)


def _parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _count(layer: nn.Module) -> int:
    count = layer.num_experts
    assert isinstance(count, int)
    return count


def grouped_sizes(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor
) -> tuple[int, float, float, float]:
    """Returns the number of groups, and rows, columns and inner size of each.

    Tokens are taken to be spread evenly.
    """
    groups = offs.shape[0]
    rows, columns, inner = map(float, (left.shape[-2], right.shape[-1], left.shape[-1]))
    if left.dim() == _MATRIX and right.dim() == _MATRIX:
        inner /= groups  # gradients of weights: each expert sums over its own tokens
    elif left.dim() == _MATRIX:
        rows /= groups
    else:
        columns /= groups
    return groups, rows, columns, inner
