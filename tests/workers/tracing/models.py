"""Users' models for traces; each function returns (module, batch maker)."""

from collections.abc import Callable, Mapping

import torch
from torch import nn

Made = tuple[nn.Module, Callable[[tuple[int, ...]], Mapping[str, torch.Tensor]]]
WIDTH, TOKENS = 64, 128

_LIBRARY = torch.library.Library("plimsoll_tests", "FRAGMENT")
_LIBRARY.define("twice(Tensor values) -> Tensor")
_LIBRARY.impl("twice", lambda values: values * 2, "CPU")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        inner = torch.nn.functional.gelu(self.up(self.norm(hidden)))
        return hidden + self.dropout(self.down(inner))


class Stacked(nn.Module):
    def __init__(self, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(depth)])
        self.head = nn.Linear(WIDTH, 1000)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())


class One(nn.Module):
    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(WIDTH, WIDTH), act

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.act(self.layer(x)).mean()


def _batch(numbers: tuple[int, ...]) -> dict[str, torch.Tensor]:
    x = torch.stack([torch.full((TOKENS, WIDTH), float(number)) for number in numbers])
    return {"x": x, "y": torch.ones(len(numbers), TOKENS, dtype=torch.long)}


def stacked(depth: int = 4) -> Made:
    return Stacked(depth), _batch


def selects() -> Made:
    return One(lambda values: values[values > 0]), _batch


def peeks() -> Made:
    return One(lambda values: values if float(values.detach().sum()) > 0 else -values), _batch


def own_operator() -> Made:
    return One(torch.ops.plimsoll_tests.twice), _batch


def normalised() -> Made:
    """Returns a model with buffers, which are copied while they are fake."""
    return One(nn.BatchNorm1d(TOKENS)), _batch
