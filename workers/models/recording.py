"""What a model's own code does to its weights when it is built: recorded on the meta device.

A weight without memory cannot be filled, but the operations that would have filled it can be
noted, and done later on any part of it. `trunc_normal_` is noted as one operation: it draws again
until it is content, which no meta tensor can be.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workers.models.boxes import Box, box_of_view
from workers.models.meta_init import telling

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
