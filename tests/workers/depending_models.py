"""User models whose loss depends on more than a sample: what the probe of a function finds."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

WIDTH = 8
Batch = Callable[[tuple[int, ...]], dict[str, torch.Tensor]]
Way = Literal["plain", "normalised", "needs two"]
Data = Literal["fixed", "own state", "by order", "by build", "by batch"]


class Net(nn.Module):
    """A linear model whose loss is a mean over samples, unless its way says otherwise."""

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        if way in ("normalised", "needs two"):
            self.norm = nn.BatchNorm1d(3 if way == "normalised" else WIDTH)
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = self.inner(x)
        if self.way == "normalised":
            states = self.norm(states).exp()  # its mean square is else always the same
        elif self.way == "needs two":  # one sample has one value for each feature
            states = self.norm(states[:, 0])
        return (states - 1).square().mean()


def make(way: Way = "plain", data: Data = "fixed") -> tuple[nn.Module, Batch, int]:
    """Returns a model and a batch maker; each depends on one thing more than it should."""
    own = np.random.default_rng()  # as no seed reaches it
    samples = torch.randn(64, 3, WIDTH, generator=torch.Generator().manual_seed(0))
    if data == "by build":
        samples = torch.from_numpy(own.normal(size=(64, 3, WIDTH))).float()
    made = 0

    def batch(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
        nonlocal made
        made += 1
        x = samples[list(numbers)]
        if data == "own state":  # augments with a generator that goes on
            keep = torch.from_numpy(own.random(x.shape) < 0.8)
            x = x * keep
        elif data == "by order":  # the first sample of a batch is scaled
            x = x * torch.tensor([2.0, *[1.0] * (len(numbers) - 1)]).view(-1, 1, 1)
        elif data == "by batch":
            x = x + made
        return {"x": x}

    return Net(way), batch, len(samples)


def make_large() -> tuple[nn.Module, Any]:
    """Returns a model that is too large to be probed."""
    _, batch, _ = make(data="own state")
    return nn.Linear(2**14 + 1, 2**14), batch
