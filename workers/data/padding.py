"""Rows of unequal length, made one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

IGNORED = -100  # a label that no loss counts: torch's and transformers' convention
PAD_TOKEN_ID = 0  # what stands there never matters: masks and labels leave it out


def pad(rows: Sequence[NDArray[Any]], value: int, multiple: int = 1) -> torch.Tensor:
    """The rows, filled up with `value` on the right; int64, shape (rows, longest).

    The width is the next multiple of `multiple`.
    """
    width = rounded_up(max(map(len, rows)), multiple)
    padded = np.full((len(rows), width), value, dtype=np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)


def pad_mask(rows: Sequence[NDArray[Any]], multiple: int = 1) -> torch.Tensor:
    """1 where a row has a token, 0 where it is filled up; int64, shape as that of `pad`."""
    return pad([np.ones(len(row), dtype=np.int64) for row in rows], 0, multiple)


def rounded_up(width: int, multiple: int) -> int:
    """The least multiple of `multiple` that is no less than `width`."""
    return -(-width // multiple) * multiple
