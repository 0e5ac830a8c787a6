"""Which architectures DeepSpeed's AutoTP trains right: those that were shown to."""

from __future__ import annotations

from torch import nn

_TRAINED: frozenset[str] = frozenset()


def autotp_refusal(module: nn.Module) -> str | None:
    """Why AutoTP may not split the module, None if it may."""
    name = type(module).__name__
    if name in _TRAINED:
        return None
    return f"{name} was not shown to train under DeepSpeed's AutoTP as it does alone"
