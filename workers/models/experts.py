"""Mixtures of experts: parameters active for a token, and grouped products without memory.

A layer of experts in transformers stacks the weights of all experts in one parameter, with the
expert as its first dimension. A router sends each token to `num_experts_per_tok` of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

_STACKED = 3  # dimensions of a weight: experts, outputs, inputs
GROUPED_MM = torch.ops.aten._grouped_mm.default
_ALIGNMENT_BYTES = 16  # of rows, as the kernels require
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


class GroupedProducts(TorchDispatchMode):
    """Gives grouped products their results inside a fake mode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        run = grouped_result if func is GROUPED_MM else func
        return run(*args, **(kwargs or {}))


def grouped_result(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001 - part of the operator's signature
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Returns an empty tensor like the result of a grouped product, fake or meta as `left` is.

    Raises:
        RuntimeError: On operands that the kernels refuse.
    """
    for operand in (left, right):
        _refuse_unaligned(operand)
    if (left.dim() == _MATRIX) != (right.dim() == _MATRIX):
        shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    else:
        groups = offs.shape[0] if left.dim() == _MATRIX and offs is not None else left.shape[0]
        shape = (groups, left.shape[-2], right.shape[-1])
    return torch.empty(shape, dtype=out_dtype or left.dtype, device=left.device)


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


def grouped_flops(left: torch.Size, right: torch.Size, *_: object, **__: object) -> int:
    """Returns the FLOPs of a grouped product for torch's counter; a routed token counts once."""
    rows, columns, inner = left[-2], right[-1], left[-1]
    groups = 1 if _MATRIX in (len(left), len(right)) else left[0]
    return 2 * groups * rows * columns * inner


FLOP_FORMULAS: dict[Any, Any] = {torch.ops.aten._grouped_mm: grouped_flops}


def _refuse_unaligned(operand: torch.Tensor) -> None:
    strides = [stride for stride in operand.stride()[-2:] if stride != 1]
    if any(stride * operand.element_size() % _ALIGNMENT_BYTES for stride in strides):
        raise RuntimeError("grouped products need rows of a multiple of 16 bytes")
