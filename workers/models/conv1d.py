"""GPT-2's linear layer, whose weight lies the other way round."""

from __future__ import annotations

import sys
from typing import TypeGuard

from torch import nn


class Conv1D(nn.Module):
    """The part of `transformers.pytorch_utils.Conv1D` that is used here, for type checkers."""

    nx: int
    nf: int


def is_conv1d(module: nn.Module) -> TypeGuard[Conv1D]:
    """Tells GPT-2's linear layer from others, without importing transformers to ask."""
    theirs = sys.modules.get("transformers.pytorch_utils")
    return theirs is not None and isinstance(module, theirs.Conv1D)
