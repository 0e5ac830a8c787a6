"""Rows of unequal length, made one tensor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

IGNORED = -100  # a label that no loss counts: torch's and transformers' convention
PAD_TOKEN_ID = 0  # what stands there never matters: masks and labels leave it out


def pad(rows: Sequence[NDArray[Any]], value: int) -> torch.Tensor:
    """The rows, filled up with `value` on the right; int64, shape (rows, longest)."""
    padded = np.full((len(rows), max(map(len, rows))), value, dtype=np.int64)
    for row, tokens in enumerate(rows):
        padded[row, : len(tokens)] = tokens
    return torch.from_numpy(padded)


def pad_mask(rows: Sequence[NDArray[Any]]) -> torch.Tensor:
    """1 where a row has a token, 0 where it is filled up; int64, shape (rows, longest)."""
    return pad([np.ones(len(row), dtype=np.int64) for row in rows], 0)
