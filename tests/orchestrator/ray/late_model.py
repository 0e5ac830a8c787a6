"""A model whose faster plans are found out by a proof alone: it goes by the micro-batch's rows.

Each pass takes as long as any other, so that plans of larger micro-batches are faster.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 32
FORGETS, SWELLS, SOUND = 32, 16, 8  # from the fastest plan down
PASS_SECONDS = 0.01


class Late(nn.Module):
    """Two blocks and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = len(x)
        time.sleep(PASS_SECONDS)
        if rows == SWELLS and not self.training and dist.get_rank() == 1:
            x = x + torch.ones(2**28).sum()  # 1 GiB, on one rank only
        if rows == FORGETS:
            x = x[: rows // 2]  # trains on half of the samples, and nothing fails
        for block in self.blocks:
            x = block(x).relu()
        return (x - 1).square().mean()


def make() -> tuple[Late, object]:
    """The model and its batches: a sample is the same in whichever batch it comes."""

    def sample(number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        return {"x": torch.stack([sample(number) for number in numbers])}

    return Late(), batch
