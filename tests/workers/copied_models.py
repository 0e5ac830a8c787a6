"""User models with tensors that are copied while they are fake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import nn

WIDTH = 8
Kind = Literal["buffers", "attribute", "layers"]
Batch = Callable[[tuple[int, ...]], dict[str, torch.Tensor]]


class Net(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.inner: nn.Module = nn.Linear(WIDTH, WIDTH)
        self.scale: list[torch.Tensor] = []
        if kind == "buffers":
            self.inner = nn.Sequential(self.inner, nn.BatchNorm1d(WIDTH))
        elif kind == "attribute":
            self.scale = [torch.ones(WIDTH)]
        else:  # torch makes deep copies of the one that it is given
            layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)
            self.inner = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.inner(x)
        for scale in self.scale:
            states = states * scale
        return states.square().mean()


def make(kind: Kind) -> tuple[nn.Module, Batch]:
    """Returns a model and its batch maker."""

    def batch(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
        shape = (len(numbers), 4, WIDTH) if kind == "layers" else (len(numbers), WIDTH)
        return {"x": torch.ones(shape)}

    return Net(kind), batch
