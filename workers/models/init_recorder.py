"""What a model's own code does to its weights when it is built: recorded on the meta device.

A weight without memory cannot be filled, but the operations that would have filled it can be
noted, and done later on any part of it. `trunc_normal_` is noted as one operation: it draws again
until it is content, which no meta tensor can be.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workers.models.stage_placeholders import Box, Shape, box_of_view, line_numbers

_WHOLE_ONLY = ("dirac_", "orthogonal_", "sparse_")  # cannot be done on a part of a weight


_TRUNCATED = "_no_grad_trunc_normal_"  # what `trunc_normal_` looks up when it is called


Note = Callable[..., None]


@contextmanager
def telling(note: Note) -> Iterator[None]:
    """Calls `note(name, tensor, ...)` for each such initialisation of a tensor on meta."""
    from transformers.initialization import TORCH_INIT_FUNCTIONS  # as `front` says

    functions: dict[str, Any] = vars(nn.init)
    drawn: Callable[..., torch.Tensor] = functions[_TRUNCATED]

    def truncated(
        tensor: torch.Tensor,
        mean: float,
        std: float,
        a: float,
        b: float,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        if not tensor.is_meta:
            return drawn(tensor, mean, std, a, b, generator)
        note("trunc_normal_", tensor, operation=drawn, arguments=(mean, std, a, b), draws=True)
        return tensor

    def whole(name: str) -> Callable[..., torch.Tensor]:
        real = functions[name]

        def told(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if tensor.is_meta:
                note(name, tensor)
            made: torch.Tensor = real(tensor, *args, **kwargs)
            return made

        return told

    public = {name: whole(name) for name in _WHOLE_ONLY}
    kept = {name: functions[name] for name in (*_WHOLE_ONLY, _TRUNCATED)}
    theirs = {name: TORCH_INIT_FUNCTIONS[name] for name in _WHOLE_ONLY}
    functions.update(public, **{_TRUNCATED: truncated})
    TORCH_INIT_FUNCTIONS.update(public)
    try:
        yield
    finally:
        functions.update(kept)
        TORCH_INIT_FUNCTIONS.update(theirs)


# In-place operations that give each element a value whatever it was, and such that change it.
_OVERWRITING = frozenset(
    {
        *("bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_"),
        *("log_normal_", "normal_", "random_", "trunc_normal_", "uniform_", "zero_"),
    }
)
_CHANGING = frozenset(
    {
        *("abs_", "add_", "clamp_", "clamp_max_", "clamp_min_", "div_", "erfinv_", "exp_"),
        *("expm1_", "log_", "log1p_", "mul_", "neg_", "pow_", "reciprocal_", "sqrt_", "sub_"),
    }
)
_FILLED: dict[str, float | None] = {  # what a new tensor holds: None for nothing in particular
    **dict.fromkeys(
        ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), None
    ),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
}

Operation = Callable[..., Any]
CHUNK_ELEMENTS = 2**20  # 4 MiB in fp32: little beside any shard that matters


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One operation on a part of a weight: a draw or a change by numbers, or a known value."""

    operation: Operation | None  # None: copies `constant`, which has the shape of `box`
    arguments: tuple[Any, ...] = ()
    draws: bool = False
    constant: torch.Tensor | None = None
    box: Box

    def on(self, part: torch.Tensor, generator: torch.Generator) -> None:
        """Does the operation in place; on a part of its box."""
        assert self.operation is not None
        if self.draws:
            self.operation(part, *self.arguments, generator=generator)
        else:
            self.operation(part, *self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a weight or buffer gets its first values.

    `name` is the one that its values follow from: of tied weights all have that of the first.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    steps: tuple[Step, ...]


class CannotTellError(Exception):
    """The first values of a weight come from operations that cannot be done on a part of it."""


class _Event(NamedTuple):
    """A write: the view that it went to and the operation, None if it is not understood."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    name: str
    operation: Operation | None
    arguments: tuple[Any, ...]
    draws: bool
    constant: torch.Tensor | None


class Recorder(TorchDispatchMode):
    """Notes what is written to tensors on the meta device while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # by identity; the storage is kept so that no other can take its place
        self._written: dict[int, tuple[torch.UntypedStorage, list[_Event]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        returned = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func._schema.is_mutable:
            self._note_writes(func, name, args, kwargs)
        elif isinstance(returned, torch.Tensor) and returned.is_meta:
            self._note_new(name, args, returned)
        return returned

    def note(self, name: str, target: torch.Tensor, **what: Any) -> None:
        """Notes a write to `target`; without an operation or constant: one not understood."""
        if not target.is_meta:
            return
        event = _Event(
            size=tuple(target.shape),
            stride=target.stride(),
            offset=int(target.storage_offset()),
            name=name,
            operation=what.get("operation"),
            arguments=what.get("arguments", ()),
            draws=what.get("draws", False),
            constant=what.get("constant"),
        )
        self._events(target).append(event)

    def recipes(self, module: nn.Module) -> dict[str, Recipe]:
        """A recipe for each weight and buffer on the meta device, under each of its names.

        Raises:
            CannotTellError: If there is none for one of them; names it.
        """
        found: dict[str, Recipe] = {}
        first: dict[int, Recipe] = {}
        for names in (
            module.named_parameters(remove_duplicate=False),
            module.named_buffers(remove_duplicate=False),
        ):
            for name, tensor in names:
                if tensor.is_meta:
                    if id(tensor) not in first:
                        first[id(tensor)] = self._recipe(name, tensor)
                    found[name] = first[id(tensor)]
        return found

    def _recipe(self, name: str, tensor: torch.Tensor) -> Recipe:
        shape = tuple(tensor.shape)
        steps: list[Step] | None = []
        for event in self._events(tensor):
            step = _step(event, shape)
            if step is not None and event.name in _OVERWRITING and step.box.covers(shape):
                steps = [step]
            elif step is None or steps is None:
                steps = None
            else:
                steps.append(step)
        is_all = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        if steps is None or not tensor.is_contiguous() or not is_all:
            raise CannotTellError(name)
        return Recipe(name=name, shape=shape, dtype=tensor.dtype, steps=tuple(steps))

    def _events(self, tensor: torch.Tensor) -> list[_Event]:
        storage = tensor.untyped_storage()
        return self._written.setdefault(storage._cdata, (storage, []))[1]

    def _note_writes(self, func: Any, name: str, args: Sequence[Any], kwargs: Any) -> None:
        written = [
            value
            for value, told in zip(args, func._schema.arguments, strict=False)
            if told.alias_info is not None and told.alias_info.is_write
        ]
        for tensor in (*written, kwargs.get("out")):
            if isinstance(tensor, torch.Tensor):
                is_understood = tensor is args[0] and name in _OVERWRITING | _CHANGING
                what = _what(func, name, args, kwargs) if is_understood else {}
                self.note(name, tensor, **what)

    def _note_new(self, name: str, args: Sequence[Any], made: torch.Tensor) -> None:
        storage = made.untyped_storage()
        if storage._cdata in self._written:
            return  # a view of what is known
        value = args[-1] if name in ("full", "full_like", "new_full") else _FILLED.get(name)
        if isinstance(value, int | float):
            self.note("fill_", made, operation=torch.Tensor.fill_, arguments=(value,))
        elif name in _FILLED:
            self._events(made)
        else:
            self.note(name, made)


@contextmanager
def recording() -> Iterator[Recorder]:
    """A recorder, entered."""
    recorder = Recorder()
    with telling(recorder.note), recorder:
        yield recorder


def _what(func: Any, name: str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """How `args[0]` is written: nothing where that depends on tensors without values."""
    if name == "copy_" and not args[1].is_meta:
        return {"constant": args[1].detach().expand(args[0].shape).clone()}
    rest = tuple(_plain(value) for value in args[1:])
    if any(isinstance(value, torch.Tensor) for value in rest):
        return {}
    named = {key: _plain(kwargs[key]) for key in kwargs if key != "generator"}
    return {
        "operation": functools.partial(func, **named),
        "arguments": rest,
        "draws": any(told.name == "generator" for told in func._schema.arguments),
    }


def _plain(value: Any) -> Any:
    """A number for a tensor that is one; what is no such tensor as it is."""
    is_number = isinstance(value, torch.Tensor) and not value.is_meta and value.dim() == 0
    return value.item() if is_number else value


def _step(event: _Event, shape: tuple[int, ...]) -> Step | None:
    if event.operation is None and event.constant is None:
        return None
    is_copy = event.constant is not None
    box = box_of_view(event.size, event.stride, event.offset, shape, ordered=is_copy)
    if box is None:
        return None
    if event.constant is None:
        return Step(
            operation=event.operation, arguments=event.arguments, draws=event.draws, box=box
        )
    assert event.constant.numel() == math.prod(box.sizes)
    return Step(operation=None, constant=event.constant.reshape(box.sizes), box=box)


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
