"""Kinds of blocks: grouping by class, shapes and settings."""

import pytest
from torch import nn

from workers.tracing.traced_model import block_kinds


class Block(nn.Module):
    def __init__(self, place: int, width: int = 4, window: int = 0, chance: float = 0.1) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.layer_idx, self.window, self.chance = place, window, chance


FROZEN = Block(2).requires_grad_(False)


@pytest.mark.parametrize(
    ("blocks", "kinds"),
    [
        ([Block(place) for place in range(5)], ((0,), (1, 2, 3, 4))),  # the first stands alone
        ([Block(place, window=place % 2) for place in range(6)], ((0,), (1, 3, 5), (2, 4))),
        ([Block(0), Block(1), Block(2, width=8)], ((0,), (1,), (2,))),
        # of chances only counts whether there are any
        ([*(Block(place, chance=place / 10) for place in range(4)), Block(4, chance=0.0)],
         ((0,), (1, 2, 3), (4,))),
        ([Block(0), Block(1), FROZEN, Block(3)], ((0,), (1, 3), (2,))),
        ([], ()),
    ],
    ids=["places", "settings", "shapes", "chances", "frozen weights", "nothing"],
)  # fmt: skip
def test_alike_blocks_are_one_kind(blocks: list[nn.Module], kinds: tuple[int, ...]) -> None:
    assert block_kinds(blocks) == kinds
