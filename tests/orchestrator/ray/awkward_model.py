"""A model that behaves by the size of its micro-batch: one sweep over it meets every ending."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

WIDTH = 64
MEMORY_GROUP = "MEMORY_GROUP"  # a folder of a control group with a limit
RAISES, DIVERGES, DIES, TOO_LARGE, HANGS, HOARDS = 2, 4, 8, 16, 32, 3


class Awkward(nn.Module):
    """Two blocks and a mean; misbehaves in forward when `x` has a certain number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x).relu()
        loss = x.square().mean()
        rows = len(x)
        if rows == RAISES:
            raise ValueError(f"rows of two are not for me at priority {os.nice(0)}")
        if rows == DIVERGES:
            loss = loss * float("nan")
        if rows == DIES and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rows == TOO_LARGE and dist.get_rank() == 1:
            loss = loss + torch.ones(2**29).sum()  # 2 GiB, on one rank only
        if rows == HOARDS and dist.get_rank() == 1:
            _hoard()
        if rows == HANGS:
            time.sleep(600)
        return loss


def _hoard() -> None:
    """Takes host memory bit by bit, far past what the test lets Ray or the kernel allow."""
    if group := os.environ.get(MEMORY_GROUP):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    held = []
    for _ in range(128):
        held.append(torch.ones(2**25))  # 128 MiB
        time.sleep(0.1)


def make() -> tuple[Awkward, object]:
    """The model and its batches."""

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(numbers[0])
        return {"x": torch.randn(len(numbers), WIDTH, generator=generator)}

    return Awkward(), batch
