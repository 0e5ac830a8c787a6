"""Recorded initialisations: the same values on any part of a weight as on the whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from workers.models import init_recorder
from workers.models.init_recorder import NotReplayableError, Recipe, fill, recording
from workers.models.stage_placeholders import TensorSlice, box_of_view, whole_slice

CPU = torch.device("cpu")


class _Odd(nn.Module):
    """Draws, changes and constants, on parts of weights of every dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.cube = nn.Parameter(torch.empty(5, 6, 7))
        self.table = nn.Parameter(torch.empty(9, 8))
        self.scalar = nn.Parameter(torch.ones(()))
        with torch.no_grad():
            self.cube.uniform_(-1, 1).mul_(3).clamp_(min=-2)
            self.cube[1:3, 2:].fill_(7.0)
            self.cube[:, 4, 1:5].normal_()
            self.table.t().normal_()
            self.table[2].zero_()
            self.table[4:6, 3:].copy_(torch.arange(10.0, device="cpu").view(2, 5))
            nn.init.trunc_normal_(self.table[7], std=0.5)


@pytest.fixture(scope="module")
def odd() -> dict[str, Recipe]:
    with recording() as recorder, torch.device("meta"):
        module = _Odd()
    return recorder.recipes(module)


def _drawn(recipe: Recipe, box: TensorSlice, seed: int = 3) -> torch.Tensor:
    target = torch.full(box.sizes, float("nan"))
    fill(target, recipe, box, seed=seed, device=CPU)
    return target


def test_steps_are_done_on_their_part(odd: dict[str, Recipe]) -> None:
    cube, table, scalar = (
        _drawn(odd[name], whole_slice(odd[name].shape)) for name in ("cube", "table", "scalar")
    )

    assert cube[1:3, 2:4].eq(7).all()
    assert cube[1:3, 4, 1:5].ne(7).all()
    assert cube[0, 0].abs().max() <= 3
    assert cube.min() >= -2 or cube[:, 4, 1:5].min() < -2
    assert table[2].eq(0).all()
    assert torch.equal(table[4:6, 3:], torch.arange(10.0).view(2, 5))
    assert table.isfinite().all()
    assert scalar == 1


@given(data=st.data())
@pytest.mark.parametrize("chunk", [1, 20, 2**20])
def test_a_part_has_the_values_of_the_whole(
    odd: dict[str, Recipe], chunk: int, data: st.DataObject
) -> None:
    recipe = odd[data.draw(st.sampled_from(["cube", "table"]))]
    starts = tuple(data.draw(st.integers(0, length - 1)) for length in recipe.shape)
    sizes = tuple(
        data.draw(st.integers(1, length - start))
        for length, start in zip(recipe.shape, starts, strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(init_recorder, "CHUNK_ELEMENTS", chunk)
        part = _drawn(recipe, TensorSlice(starts=starts, sizes=sizes))
        expected = _drawn(recipe, whole_slice(recipe.shape))

    box = tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))
    assert torch.equal(part, expected[box])
    assert not torch.equal(_drawn(odd["table"], whole_slice((9, 8)), seed=4), expected)


@given(data=st.data())
def test_the_box_of_a_view(data: st.DataObject) -> None:
    shape = (4, 1, 5, 3)
    tensor = torch.arange(math.prod(shape)).view(shape)
    ranges = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in shape]
    view = tensor[tuple(slice(a, b) for a, b in ranges)]
    if data.draw(st.booleans()):
        view = view.transpose(0, 3)
    if view.numel() == 0:
        return

    box = box_of_view(
        tuple(view.shape), view.stride(), int(view.storage_offset()), shape, ordered=False
    )

    assert box is not None
    cut = tuple(slice(start, end) for start, end in zip(box.starts, box.ends, strict=True))
    assert tensor[cut].sum() == view.sum()
    assert tensor[cut].numel() == view.numel()


@pytest.mark.parametrize("init", [nn.init.orthogonal_, nn.init.dirac_], ids=["qr", "dirac"])
def test_what_needs_the_whole_weight_cannot_be_told(init: Any) -> None:
    with recording() as recorder, torch.device("meta"):
        module = nn.Conv1d(4, 4, 3)
        getattr(nn.init, init.__name__)(module.weight)

    with pytest.raises(NotReplayableError, match="weight"):
        recorder.recipes(module)
    assert getattr(nn.init, init.__name__) is init


def test_values_computed_from_draws_cannot_be_told() -> None:
    with recording() as recorder, torch.device("meta"):
        module = nn.Linear(4, 4)
        with torch.no_grad():
            module.bias.copy_(torch.randn(4).log())

    with pytest.raises(NotReplayableError, match="bias"):
        recorder.recipes(module)
