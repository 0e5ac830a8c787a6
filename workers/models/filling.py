"""The first values of a part of a weight, the same however the weight is split.

A weight is drawn in chunks of whole lines, each with a generator of its own, so that a part
draws only the chunks that it meets.
"""

from __future__ import annotations

import hashlib
import math

import torch

from workers.models.boxes import Box, Shape, line_numbers
from workers.models.recording import Recipe, Step

CHUNK_ELEMENTS = 2**20  # 4 MiB in fp32: little beside any shard that matters


def fill(
    target: torch.Tensor,
    recipe: Recipe,
    box: Box,
    *,
    seed: int,
    device: torch.device,
) -> None:
    """Gives `target` the values of `box`, a part of the recipe's weight.

    Args:
        target: Has the shape of `box`; it may lie on another device or be of another type.
        recipe: Of the whole weight.
        box: In the whole weight.
        seed: Of the model's weights.
        device: Draws them; CPU and CUDA draw different ones.
    """
    if target.numel() == 0:
        return
    if not recipe.steps:  # its own code leaves it as the memory was
        target.zero_()
        return
    shape, box = _with_lines(recipe.shape, box)
    count, width = math.prod(shape[:-1]), shape[-1]
    out = target if target.is_contiguous() else torch.empty_like(target).contiguous()
    rows = out.view(-1, box.sizes[-1])
    lines = line_numbers(box, shape)
    step = max(1, CHUNK_ELEMENTS // width)
    generator = torch.Generator(device)
    place = 0
    while place < len(lines):
        index = int(lines[place]) // step
        first, last = index * step, min((index + 1) * step, count)
        end = int(torch.searchsorted(lines, last))
        is_all = (end - place, box.sizes[-1]) == (last - first, width)
        direct = is_all and (out.dtype, out.device) == (recipe.dtype, device)
        if direct:
            chunk = rows[place:end]
        else:
            chunk = torch.empty(last - first, width, dtype=recipe.dtype, device=device)
        generator.manual_seed(_seed(seed, recipe.name, index))
        for operation in recipe.steps:
            _do(operation, chunk, first, shape, generator)
        if not direct:
            part = _rows(chunk, lines[place:end] - first)
            rows[place:end].copy_(part.narrow(1, box.starts[-1], box.sizes[-1]))
        place = end
    if out is not target:
        target.copy_(out)


def _do(
    step: Step, chunk: torch.Tensor, first: int, shape: Shape, generator: torch.Generator
) -> None:
    """Does a step on the lines of a weight that begin at `first`."""
    shape, box = _with_lines(shape, step.box)
    if box.covers(shape) and step.constant is None:
        step.on(chunk, generator)
        return
    lines = line_numbers(box, shape)
    begin, end = (int(torch.searchsorted(lines, line)) for line in (first, first + chunk.shape[0]))
    if begin == end:
        return
    numbers = lines[begin:end] - first
    part = _rows(chunk, numbers).narrow(1, box.starts[-1], box.sizes[-1])
    if step.constant is not None:
        part.copy_(step.constant.reshape(-1, box.sizes[-1])[begin:end])
    else:
        step.on(part, generator)
    if not _is_row(numbers):  # then `part` was a copy
        chunk[numbers.to(chunk.device), box.starts[-1] : box.ends[-1]] = part


def _rows(lines: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """Some lines: a view where they follow each other, else a copy."""
    if _is_row(numbers):
        return lines[int(numbers[0]) : int(numbers[-1]) + 1]
    return lines[numbers.to(lines.device)]


def _is_row(numbers: torch.Tensor) -> bool:
    return int(numbers[-1] - numbers[0]) + 1 == len(numbers)


def _with_lines(shape: Shape, box: Box) -> tuple[Shape, Box]:
    """A scalar as a line of one element."""
    if shape:
        return shape, box if box.sizes else Box(starts=(0,), sizes=(1,))
    return (1,), Box(starts=(0,), sizes=(1,))


def _seed(seed: int, name: str, chunk: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}/{chunk}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
