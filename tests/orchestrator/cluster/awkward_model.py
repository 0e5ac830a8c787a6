"""A model that misbehaves at certain sizes of the micro-batch: one sweep meets every ending.

A specification's `model.config` says at how many rows it does what: `{raises: 2, hangs: 16}`.
"""

import mmap
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
BEHAVIOURS = ("raises", "diverges", "dies", "too_large", "hangs", "hoards", "forgets", "strands")


class Awkward(nn.Module):
    """Two blocks and a mean."""

    def __init__(self, rows: Mapping[str, int], pass_seconds: float) -> None:
        """Builds the blocks.

        Args:
            rows: Behaviours, and the number of rows at which each shows.
            pass_seconds: Of each forward pass, so that plans of larger micro-batches are faster.
        """
        super().__init__()
        assert rows.keys() <= set(BEHAVIOURS)
        self.rows, self.pass_seconds = dict(rows), pass_seconds
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [behaviour for behaviour, rows in self.rows.items() if rows == len(x)]
        behaviour = found[0] if found else ""
        time.sleep(self.pass_seconds)
        if behaviour == "forgets":
            x = x[: len(x) // 2]  # trains on half of the samples, and nothing fails
        for block in self.blocks:
            x = block(x).relu()
        loss = (x - 1).square().mean()
        if behaviour == "raises":
            raise ValueError(f"rows of two are not for me at priority {os.nice(0)}")
        if behaviour == "diverges":
            loss = loss * float("nan")
        if behaviour == "hangs":
            time.sleep(600)
        if (
            behaviour == "strands"
        ):  # one rank fails while the other is in nothing that an abort ends
            if dist.get_rank() == 0:
                raise ValueError(f"alone over {dist.get_backend()}")
            time.sleep(600)
        if behaviour and dist.is_initialized() and dist.get_rank() == 1:
            self._on_one_rank(behaviour, loss)
        return loss

    def _on_one_rank(self, behaviour: str, loss: torch.Tensor) -> None:
        if behaviour == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if behaviour == "too_large":
            loss.add_(torch.ones(2**29).sum())  # 2 GiB
        if behaviour == "hoards":
            _hoard()


def _hoard() -> None:
    """Allocates host memory bit by bit, far past the limit of Ray or of the kernel.

    It is shared memory, which a rank's own budget does not limit: that would be met first wherever
    other processes gave memory back meanwhile.
    """
    if group := os.environ.get(MEMORY_GROUP):
        Path(group, "cgroup.procs").write_text(str(os.getpid()))
    held = []
    for _ in range(128):
        held.append(torch.frombuffer(mmap.mmap(-1, 2**27), dtype=torch.uint8).fill_(1))
        time.sleep(0.1)


def make(*, pass_seconds: float = 0.0, **rows: int) -> tuple[Awkward, object]:
    """Returns the model and its batches; a sample is the same in any batch."""

    def sample(number: int) -> torch.Tensor:
        return torch.randn(WIDTH, generator=torch.Generator().manual_seed(number))

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        return {"x": torch.stack([sample(number) for number in numbers])}

    return Awkward(rows, pass_seconds), batch
