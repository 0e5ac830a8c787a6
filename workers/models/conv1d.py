"""GPT-2's linear layer, whose weight lies the other way round."""

from __future__ import annotations

import sys
from typing import TypeGuard

from torch import nn


class Conv1D(nn.Module):
    """What `transformers.pytorch_utils.Conv1D` has, for type checkers."""

    nx: int
    nf: int


def is_conv1d(module: nn.Module) -> TypeGuard[Conv1D]:
    """Whether the module is one; transformers, which takes a second, is not imported to ask."""
    theirs = sys.modules.get("transformers.pytorch_utils")
    return theirs is not None and isinstance(module, theirs.Conv1D)
