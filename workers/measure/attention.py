"""Attention backends that torch chooses in a training step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only


class AttentionBackends(TorchFunctionMode):
    """Notes which backends `scaled_dot_product_attention` chooses while it is active.

    By the arguments of each call, as torch itself chooses. Do not use it around compiled code,
    which would be compiled for the mode, and again without it.

    Source:
        `aten/src/ATen/native/transformers/attention.cpp`, scaled_dot_product_attention, torch 2.13.
    """

    def __init__(self) -> None:
        super().__init__()
        self._chosen: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The backends so far, sorted, as torch names them: cudnn_attention, flash_attention."""
        return tuple(sorted(self._chosen))

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            cast_args, cast_kwargs = tree_map_only(torch.Tensor, _as_kernel_sees, (args, kwargs))
            choice = torch._fused_sdp_choice(*cast_args, **cast_kwargs)
            self._chosen.add(SDPBackend(choice).name.lower())
        return func(*args, **kwargs)


def _as_kernel_sees(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a split tensor, cast as autocast does before the kernel."""
    if isinstance(tensor, DTensor):
        tensor = tensor.to_local()
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or not tensor.is_floating_point():
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))
