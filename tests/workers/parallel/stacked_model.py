"""A user's model that can be cut into stages, with an optional fault on one rank."""

from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

WIDTH, ROWS, TOKENS = 16, 30, 6
HUGE_BYTES = 2**30  # four times the budget of the tests


class Block(nn.Module):
    def __init__(self, fault_at: int) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.calls, self.fault_at = 0, fault_at

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == self.fault_at:
            hidden = hidden + torch.ones(HUGE_BYTES // 4)[0]
        return hidden + torch.tanh(self.inner(hidden))


class Stacked(nn.Module):
    """Embeddings, blocks and a head that reshapes its output."""

    def __init__(self, layers: int, fault_at: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(ROWS, WIDTH)
        self.positions = nn.Embedding(TOKENS, WIDTH)
        self.layers = nn.Sequential(*[Block(fault_at) for _ in range(layers)])
        self.head = nn.Linear(WIDTH, ROWS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(ids.shape[1], device=ids.device)
        hidden = self.layers(self.tokens(ids) + self.positions(places))
        logits = self.head(hidden).view(-1, ROWS)
        return cross_entropy(logits, ids.flatten())


def make(
    *, layers: int = 4, rank: int | None = None, call: int = 0
) -> tuple[nn.Module, Callable[[tuple[int, ...]], Mapping[str, torch.Tensor]]]:
    """Returns the model and its batch maker.

    Args:
        layers: Number of blocks.
        rank: The rank with the fault: a block that requests more memory than there is.
        call: Call of a block with the fault, counted from 1; 0 for no fault.
    """
    mine = dist.is_initialized() and dist.get_rank() == rank

    def batch(numbers: tuple[int, ...]) -> Mapping[str, torch.Tensor]:
        rows = [[(number * 7 + place) % ROWS for place in range(TOKENS)] for number in numbers]
        return {"ids": torch.tensor(rows)}

    return Stacked(layers, call if mine else 0), batch
