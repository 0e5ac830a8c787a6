"""Batches of users' batch makers: arrays and lists as tensors, and the module's part of them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from search_spaces.errors import ModelError

TARGETS = "targets"  # key of a batch: the weight of its loss, unless it is the module's argument


def batch_tensors(batch: object) -> dict[str, Any]:
    """Returns a batch with arrays and lists of numbers as tensors.

    Scalars, booleans, None and texts stay as they are, for the module's forward.

    Raises:
        ModelError: If it is no mapping, or has an array that torch cannot take; names the key.
    """
    if not isinstance(batch, Mapping):
        raise ModelError(
            f"the batch maker returned {type(batch).__name__}, must return a mapping of the"
            " module's keyword arguments to tensors"
        )
    return {str(key): _with_tensors(value, str(key)) for key, value in batch.items()}


def _with_tensors(value: Any, key: str) -> Any:
    if isinstance(value, Mapping):
        return {inner: _with_tensors(one, f"{key}.{inner}") for inner, one in value.items()}
    is_array = isinstance(value, np.ndarray | np.generic)
    if isinstance(value, list | tuple):
        leaf: Any = value
        while isinstance(leaf, list | tuple) and leaf:
            leaf = leaf[0]
        if not isinstance(leaf, int | float | np.ndarray | np.generic):
            return type(value)([_with_tensors(one, key) for one in value])
    elif not is_array:
        return value
    try:
        return torch.as_tensor(value if is_array else np.array(value))
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"the batch maker's {key!r} is no array of numbers with rows of one length:"
            f" {' '.join(str(error).split())}"
        ) from error


def takes_targets(module: nn.Module) -> bool:
    """Tells if a batch's `targets` are an argument of the module, not the weight of its loss."""
    return TARGETS in inspect.signature(module.forward).parameters


def module_inputs(batch: Mapping[str, Any], *, takes_targets: bool) -> dict[str, Any]:
    """Returns what a batch of `batch_tensors` has for the module: all but a weight in `targets`."""
    weight = batch.get(TARGETS)
    numbers = weight.numel() if isinstance(weight, torch.Tensor) else 1
    if takes_targets or numbers != 1:
        return dict(batch)
    return {name: value for name, value in batch.items() if name != TARGETS}


def inputs_of(module: nn.Module, batch: object) -> dict[str, Any]:
    """Returns the arguments that a user's batch has for a module, in tensors.

    Raises:
        ModelError: As `batch_tensors`.
    """
    return module_inputs(batch_tensors(batch), takes_targets=takes_targets(module))
