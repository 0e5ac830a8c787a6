"""What a forward pass takes, and how much of it is sample and how much is padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """The input of one forward pass of one rank.

    `inputs` are the module's keyword arguments; `samples` and `tokens` count what was asked
    for, without padding; `targets` is how many labels the loss is a mean over (its weight
    when micro-batches are added up).
    """

    inputs: Mapping[str, torch.Tensor]
    samples: int
    tokens: int
    targets: int

    def on(self, device: torch.device) -> dict[str, torch.Tensor]:
        """The inputs on a device."""
        return {name: tensor.to(device, non_blocking=True) for name, tensor in self.inputs.items()}

    def pin_memory(self) -> Self:
        """A copy in page-locked memory, from which CUDA copies without waiting."""
        pinned = {name: tensor.pin_memory() for name, tensor in self.inputs.items()}
        return replace(self, inputs=pinned)
