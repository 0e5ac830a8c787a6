"""Experts of a model: how many of its parameters a token meets.

A layer of experts in transformers holds each kind of weight of all experts in one parameter, the
expert as its first dimension, and a router sends each token to `num_experts_per_tok` of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

_STACKED = 3  # dimensions of a weight: experts, outputs, inputs


def expert_layers(module: nn.Module) -> Iterator[nn.Module]:
    """The modules that hold the weights of all experts of a layer."""
    for part in module.modules():
        count = getattr(part, "num_experts", None)
        if isinstance(count, int) and any(
            weight.dim() == _STACKED and len(weight) == count
            for weight in part.parameters(recurse=False)
        ):
            yield part


def active_parameters(module: nn.Module) -> int | None:
    """Parameters that one token meets; None for a model without experts, where those are all.

    None too where the configuration does not say how many experts a token is sent to.
    """
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    chosen = getattr(config, "num_experts_per_tok", None)
    layers = list(expert_layers(module))
    if not layers or not isinstance(chosen, int):
        return None
    idle = sum(_parameters(layer) * (1 - min(chosen / _count(layer), 1)) for layer in layers)
    return round(_parameters(module) - idle)


def _parameters(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _count(layer: nn.Module) -> int:
    count = layer.num_experts
    assert isinstance(count, int)
    return count
