"""Kinds of blocks: grouping by class, shapes and settings."""

from __future__ import annotations

from torch import nn

from workers.tracing.traced_model import block_kinds


class Block(nn.Module):
    def __init__(self, place: int, width: int = 4, window: int = 0, chance: float = 0.1) -> None:
        super().__init__()
        self.layer = nn.Linear(4, width)
        self.layer_idx, self.window, self.chance = place, window, chance


def test_places_are_no_difference_and_the_first_stands_alone() -> None:
    assert block_kinds([Block(place) for place in range(5)]) == ((0,), (1, 2, 3, 4))


def test_a_setting_is_a_difference() -> None:
    blocks = [Block(place, window=512 * (place % 2)) for place in range(6)]

    assert block_kinds(blocks) == ((0,), (1, 3, 5), (2, 4))


def test_a_shape_is_a_difference() -> None:
    assert block_kinds([Block(0), Block(1), Block(2, width=8)]) == ((0,), (1,), (2,))


def test_of_chances_only_counts_whether_there_are_any() -> None:
    blocks = [Block(place, chance=place / 10) for place in range(4)] + [Block(4, chance=0.0)]

    assert block_kinds(blocks) == ((0,), (1, 2, 3), (4,))


def test_frozen_weights_are_a_difference() -> None:
    blocks = [Block(place) for place in range(4)]
    blocks[2].requires_grad_(False)

    assert block_kinds(blocks) == ((0,), (1, 3), (2,))


def test_of_nothing_nothing_is_alike() -> None:
    assert block_kinds([]) == ()
