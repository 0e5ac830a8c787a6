"""Modules that stand where a stage has none of its own: cheap, and without parameters.

A stage runs the model's own forward. What lies in other stages is replaced: embeddings give
zeros, blocks hand on what they are given, the block before the first own one gives what was
received, and the one behind the last own one takes what is sent on and ends the pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm:
    """Where a block takes hidden states, and how it gives them back.

    `place` is a position or a keyword; `empty` is how many empty members follow the hidden states
    in the tuple that a block returns, None if it returns them bare.
    """

    place: int | str
    empty: int | None

    def taken(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The hidden states among a block's arguments, None if they are not there."""
        if isinstance(self.place, str):
            return kwargs.get(self.place)
        return args[self.place] if self.place < len(args) else None

    def given(self, hidden: torch.Tensor) -> Any:
        """Hidden states as a block gives them back."""
        return hidden if self.empty is None else (hidden, *[None] * self.empty)


class LeftEarlyError(Exception):
    """Ends a forward pass behind the last block of a stage; `leaving_early` catches it."""


class Passage:
    """Hidden states of the pass under way: those that came into a stage, those that leave it."""

    def __init__(self) -> None:
        self._received: torch.Tensor | None = None
        self._left: torch.Tensor | None = None

    def enter(self, hidden: torch.Tensor | None) -> None:
        """Keeps what was received for the pass that begins; None in the first stage."""
        self._received, self._left = hidden, None

    def received(self) -> torch.Tensor:
        """What was received."""
        assert self._received is not None
        return self._received

    def leave(self, hidden: torch.Tensor) -> torch.Tensor:
        """Keeps what is to be sent on.

        Raises:
            LeftEarlyError: Always: what comes behind is of other stages.
        """
        self._left = hidden
        raise LeftEarlyError

    def collect(self) -> torch.Tensor:
        """What is to be sent on; the passage is empty afterwards."""
        left, self._left, self._received = self._left, None, None
        assert left is not None
        return left


class Passing(nn.Module):
    """Stands for a block of another stage; by itself it hands hidden states on."""

    def __init__(
        self,
        block: nn.Module,
        form: BlockForm,
        act: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        self._form, self._act = form, act
        for name, value in vars(block).items():  # what a model's loop reads, as attention_type
            if not name.startswith("_") and not isinstance(value, nn.Module | torch.Tensor):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        hidden = self._form.taken(args, kwargs)
        return self._form.given(hidden if self._act is None else self._act(hidden))


class Zeros(nn.Module):
    """Stands for embeddings: zeros in the shape of hidden states, without memory for them."""

    def __init__(self, passage: Passage) -> None:
        super().__init__()
        self._passage = passage

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        hidden = self._passage.received()
        return hidden.new_zeros(()).expand(hidden.shape)


def leaving_early(module: nn.Module, passage: Passage) -> None:
    """Lets `module` return what leaves the stage instead of its output; in place.

    Its own forward is replaced and not wrapped by another module, so that its parameters keep
    their names, and what shards the module sees the tensor that backward starts from.
    """
    whole = module.forward

    def forward(*args: Any, **kwargs: Any) -> torch.Tensor:
        try:
            whole(*args, **kwargs)
        except LeftEarlyError:
            return passage.collect()
        raise AssertionError("a pass went through a stage without meeting its end")

    module.forward = forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """In each dimension of a tensor, the first index and how many."""

    starts: Shape
    sizes: Shape

    def covers(self, shape: Shape) -> bool:
        """Whether it is all of a tensor of this shape."""
        return self.sizes == shape

    def meet(self, other: Box) -> Box | None:
        """What lies in both; None if nothing does."""
        starts = tuple(map(max, self.starts, other.starts))
        ends = tuple(map(min, self.ends, other.ends))
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return Box(starts=starts, sizes=sizes) if all(size > 0 for size in sizes) else None

    @property
    def ends(self) -> Shape:
        """In each dimension, the index behind the last."""
        return tuple(start + size for start, size in zip(self.starts, self.sizes, strict=True))


def whole(shape: Shape) -> Box:
    """All of a tensor."""
    return Box(starts=(0,) * len(shape), sizes=shape)


def line_numbers(box: Box, shape: Shape) -> torch.Tensor:
    """Which lines (rows along the last dimension) of a tensor a box takes, in rising order."""
    lines = torch.zeros(1, dtype=torch.int64, device="cpu")
    for start, size, length in zip(box.starts[:-1], box.sizes[:-1], shape[:-1], strict=True):
        span = torch.arange(start, start + size, device="cpu")
        lines = (lines[:, None] * length + span).reshape(-1)
    return lines


def box_of_view(
    size: Shape, stride: Shape, offset: int, shape: Shape, *, ordered: bool
) -> Box | None:
    """The part of a contiguous tensor of `shape` that a view of it shows.

    None if it is no box. With `ordered` the view must have its elements in the tensor's order.
    """
    count = math.prod(size)
    if offset == 0 and count == math.prod(shape) and _is_contiguous(size, stride):
        return whole(shape)
    strides = [math.prod(shape[place + 1 :]) for place in range(len(shape))]
    starts = tuple(offset // step % length for step, length in zip(strides, shape, strict=True))
    left = [(step, length) for step, length in zip(stride, size, strict=True) if length != 1]
    if ordered and left != sorted(left, reverse=True):
        return None
    sizes = []
    for step, length, start in zip(strides, shape, starts, strict=True):
        found = next((seen for seen in left if length > 1 and seen[0] == step), (0, 1))
        if found in left:
            left.remove(found)
        if start + found[1] > length:
            return None
        sizes.append(found[1])
    return None if left else Box(starts=starts, sizes=tuple(sizes))


def _is_contiguous(size: Shape, stride: Shape) -> bool:
    expected = 1
    for length, step in zip(reversed(size), reversed(stride), strict=True):
        if length != 1 and step != expected:
            return False
        expected *= length
    return True
