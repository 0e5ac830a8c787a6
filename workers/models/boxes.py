"""Parts of tensors: boxes of elements, and the lines of the last dimension that they take."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

Shape = tuple[int, ...]


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
