"""Weights held in bf16: their gradients and the optimizer's moments have the same type."""

from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only


def hold_in_bf16(module: nn.Module) -> None:
    """Casts all weights in place, and from now on what the module is called with.

    Call it before weights are split, wrapped or given memory. Buffers stay: models compute
    positions from them in fp32.
    """
    for weight in module.parameters():
        if weight.is_floating_point():
            weight.data = weight.data.to(torch.bfloat16)
    module.register_forward_pre_hook(cast_inputs, with_kwargs=True)


def cast_inputs(_: nn.Module, args: Any, kwargs: Any) -> Any:
    """Returns a module's arguments, with fractions in bf16."""
    return tree_map_only(torch.Tensor, _in_bf16, (args, kwargs))


def _in_bf16(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor
