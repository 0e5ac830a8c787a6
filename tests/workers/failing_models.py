"""User models that fail in every trial: what a look before the first one can tell."""

from typing import Any

import torch
from torch import nn

WIDTH = 8


class Net(nn.Module):
    """A model whose step fails if its weights do not fit the samples."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x).square().mean()


class Unready(Net):
    """A model of which a part is not there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        missing: torch.Tensor = self.missing(x)
        return missing


class Odd(Net):
    """A model that takes no even number of samples."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if len(x) % 2 == 0:
            raise ValueError("an even batch")
        return super().forward(x)


def batch(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Returns the samples of these numbers."""
    return {"x": torch.stack([torch.full((WIDTH,), float(number)) for number in numbers])}


def renamed(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Returns a batch whose entry forward does not know."""
    return {"ids": batch(numbers)["x"]}


def uneven(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Fails where samples have several lengths."""
    return {"x": torch.stack([torch.ones(1 + number) for number in numbers])}


def of_two(count: int, seed: int) -> dict[str, torch.Tensor]:
    """Takes other arguments than sample numbers."""
    return batch((count, seed))


def elsewhere(_: tuple[int, ...]) -> dict[str, torch.Tensor]:
    """Reads a file that other machines may have."""
    return {"x": torch.load("/nowhere/samples.pt", weights_only=True)}


def make(kind: str) -> tuple[nn.Module, Any]:
    """Returns a model and a batch maker of which one fails, as its kind says."""
    match kind:
        case "narrow":
            return Net(WIDTH - 1), batch
        case "unready":
            return Unready(), batch
        case "odd":
            return Odd(), batch
        case "wrapped":
            return nn.DataParallel(Net()), batch
        case "compiled":
            return torch.compile(Net()), batch
        case "half":
            return Net().to(torch.bfloat16), batch
    return Net(), {"renamed": renamed, "uneven": uneven, "of two": of_two}.get(kind, elsewhere)
