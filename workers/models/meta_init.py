"""Initialisations that torch skips on the meta device, told to who records.

torch's random ones but these do there what they do elsewhere, only without values. What model
code imported under another name than `torch.nn.init`'s or transformers' is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_WHOLE_ONLY = ("dirac_", "orthogonal_", "sparse_")  # cannot be done on a part of a weight
_TRUNCATED = "_no_grad_trunc_normal_"  # what `trunc_normal_` looks up when it is called

Note = Callable[..., None]


@contextmanager
def telling(note: Note) -> Iterator[None]:
    """Calls `note(name, tensor, ...)` for each such initialisation of a tensor on meta."""
    from transformers.initialization import TORCH_INIT_FUNCTIONS  # as `front` says

    functions: dict[str, Any] = vars(nn.init)
    drawn: Callable[..., torch.Tensor] = functions[_TRUNCATED]

    def truncated(
        tensor: torch.Tensor,
        mean: float,
        std: float,
        a: float,
        b: float,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        if not tensor.is_meta:
            return drawn(tensor, mean, std, a, b, generator)
        note("trunc_normal_", tensor, operation=drawn, arguments=(mean, std, a, b), draws=True)
        return tensor

    def whole(name: str) -> Callable[..., torch.Tensor]:
        real = functions[name]

        def told(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if tensor.is_meta:
                note(name, tensor)
            made: torch.Tensor = real(tensor, *args, **kwargs)
            return made

        return told

    public = {name: whole(name) for name in _WHOLE_ONLY}
    kept = {name: functions[name] for name in (*_WHOLE_ONLY, _TRUNCATED)}
    theirs = {name: TORCH_INIT_FUNCTIONS[name] for name in _WHOLE_ONLY}
    functions.update(public, **{_TRUNCATED: truncated})
    TORCH_INIT_FUNCTIONS.update(public)
    try:
        yield
    finally:
        functions.update(kept)
        TORCH_INIT_FUNCTIONS.update(theirs)
