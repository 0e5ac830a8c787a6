"""A model that is ready to be parallelised and trained, whatever it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from search_spaces.spec.schema import Task

SampleNumbers = tuple[int, ...]
BatchMaker = Callable[[SampleNumbers], Mapping[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltModel:
    """A module, its repeated blocks, and what its batches look like.

    `blocks` are the repeated layers in order, which sharding and checkpointing wrap.
    `batch_maker` is None where Plimsoll's own data feeds the model; else it turns the numbers
    of samples into the keyword arguments of `module`.
    """

    module: nn.Module
    blocks: tuple[nn.Module, ...]
    task: Task
    vocab_size: int | None
    batch_maker: BatchMaker | None
