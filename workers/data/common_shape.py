"""Micro-batches of unequal shapes, filled up to one: what goes through a pipeline has one shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from workers.data.batch import MicroBatch
from workers.data.padding import IGNORED, PAD_TOKEN_ID

_FILLED_WITH = {"input_ids": PAD_TOKEN_ID, "attention_mask": 0, "labels": IGNORED}


def to_common_shape(batches: Sequence[MicroBatch]) -> tuple[MicroBatch, ...]:
    """The micro-batches of a step with as many rows and columns as the largest of each.

    What is added has no labels and is attended to by no sample: it is masked, or in packed rows
    a sample of its own. So no loss changes.

    Args:
        batches: Of Plimsoll's own data.
    """
    rows, columns = (
        max(batch.inputs["input_ids"].shape[dimension] for batch in batches) for dimension in (0, 1)
    )
    return tuple(
        replace(
            batch,
            inputs={
                name: _filled(name, tensor, rows, columns) for name, tensor in batch.inputs.items()
            },
        )
        for batch in batches
    )


def _filled(name: str, tensor: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """A tensor of rows of tokens; one of a number for each row has no columns to fill."""
    shape = (rows, columns)[: tensor.dim()]
    if tensor.shape == shape:
        return tensor
    if name == "position_ids":  # what is added to a row is one more sample, as are rows
        kept, added = tensor.shape
        filled = torch.arange(columns).repeat(rows, 1)
        filled[:, added:] -= added
        filled[kept:] = torch.arange(columns)
    else:
        filled = torch.full(shape, _FILLED_WITH[name], dtype=tensor.dtype)
    filled[tuple(slice(size) for size in tensor.shape)] = tensor
    return filled
