"""A tiny model that records which process built it, and with which allocator setting."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

FOLDER = "told"


class Tiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.layer(x).square().mean()
        return loss


def make() -> tuple[Tiny, object]:
    """Returns the model and its batches; writes a file named after the process."""
    if os.environ.get("RAY_JOB_ID") or "ray::" in Path("/proc/self/cmdline").read_text():
        told = os.environ.get("MALLOC_MMAP_THRESHOLD_", "")
        (Path(FOLDER) / str(os.getpid())).write_text(told)
    return Tiny(), lambda numbers: {"x": torch.ones(len(numbers), 8)}
