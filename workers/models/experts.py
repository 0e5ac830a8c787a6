"""Mixtures of experts: their facts, and sizes of grouped products.

A layer of experts in transformers stacks the weights of all experts in one parameter, with the
expert as its first dimension. A router sends each token to `num_experts_per_tok` of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch
from torch import nn

from search_spaces.facts import ExpertFacts
from workers.plain_torch.experts import DISPATCH, expert_styles

_STACKED = 3  # dimensions of a weight: experts, outputs, inputs
_DECORATED = "_is_expert_parallel"  # an attribute that `use_experts_implementation` adds
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


def expert_facts(module: nn.Module) -> ExpertFacts | None:
    """Returns the facts about a model's experts.

    None for a model without experts, and for one whose configuration does not state the number of
    experts for a token, or whose layers have different numbers of them.
    """
    config: Any = getattr(module, "config", None)
    if hasattr(config, "get_text_config"):
        config = config.get_text_config()
    per_token = getattr(config, "num_experts_per_tok", None)
    layers = list(expert_layers(module))
    counts = {cast(int, layer.num_experts) for layer in layers}
    if len(counts) != 1 or not isinstance(per_token, int):
        return None
    return ExpertFacts(
        count=counts.pop(),
        layers=len(layers),
        per_token=per_token,
        parameters=sum(weight.numel() for layer in layers for weight in layer.parameters()),
        refusal=_refusal(module, layers),
        kernels=all(hasattr(layer, _DECORATED) for layer in layers),
    )


def _refusal(module: nn.Module, layers: Sequence[nn.Module]) -> str | None:
    name = type(module).__name__
    styles = expert_styles(module)
    names = {part: name for name, part in module.named_modules()}
    if all(styles.get(names[layer]) == DISPATCH for layer in layers):
        return None
    return f"transformers has no plan that divides the experts of {name} over ranks"


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
