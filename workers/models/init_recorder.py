"""Recorder of a model's own initialisation on the meta device, and its replay on any part.

A weight without memory cannot be filled, but the operations that would fill it can be recorded
and done later on any part of it. `trunc_normal_` counts as one operation: its loop draws until
the values are in range, which it cannot see on a meta tensor.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from workers.models.stage_placeholders import Shape, TensorSlice, box_of_view, line_numbers

_WHOLE_ONLY = ("dirac_", "orthogonal_", "sparse_")  # cannot be done on a part of a weight
_TRUNCATED = "_no_grad_trunc_normal_"  # `trunc_normal_` looks it up at each call

Note = Callable[..., None]


@contextmanager
def patched_initializers(note: Note) -> Iterator[None]:
    """Calls `note(name, tensor, ...)` for initialisations that need special treatment.

    Those are `trunc_normal_` and the ones that cannot be done on a part, on the meta device.
    """
    from transformers.initialization import TORCH_INIT_FUNCTIONS  # takes over a second

    functions: dict[str, Any] = vars(nn.init)
    draw_truncated: Callable[..., torch.Tensor] = functions[_TRUNCATED]

    def truncated(
        tensor: torch.Tensor,
        mean: float,
        std: float,
        a: float,
        b: float,
        generator: torch.Generator | None = None,
    ) -> torch.Tensor:
        if not tensor.is_meta:
            return draw_truncated(tensor, mean, std, a, b, generator)
        arguments = (mean, std, a, b)
        note("trunc_normal_", tensor, operation=draw_truncated, arguments=arguments, draws=True)
        return tensor

    def noting(name: str) -> Callable[..., torch.Tensor]:
        original = functions[name]

        def initialise(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if tensor.is_meta:
                note(name, tensor)
            result: torch.Tensor = original(tensor, *args, **kwargs)
            return result

        return initialise

    patches = {name: noting(name) for name in _WHOLE_ONLY}
    torch_originals = {name: functions[name] for name in (*_WHOLE_ONLY, _TRUNCATED)}
    transformers_originals = {name: TORCH_INIT_FUNCTIONS[name] for name in _WHOLE_ONLY}
    functions.update(patches, **{_TRUNCATED: truncated})
    TORCH_INIT_FUNCTIONS.update(patches)
    try:
        yield
    finally:
        functions.update(torch_originals)
        TORCH_INIT_FUNCTIONS.update(transformers_originals)


# In-place operations that set each element regardless of its value, and those that change it.
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
_NEW_VALUES: dict[str, float | None] = {  # value of a new tensor; None: undefined
    **dict.fromkeys(
        ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"), None
    ),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
}

Operation = Callable[..., Any]
CHUNK_ELEMENTS = 2**20  # 4 MiB in fp32: little compared with any shard that matters


@dataclass(frozen=True, slots=True, kw_only=True)
class InitStep:
    """One operation on a part of a weight: a draw, a change by numbers, or a constant."""

    operation: Operation | None  # None: copies `constant`, which has the shape of `box`
    arguments: tuple[Any, ...] = ()
    draws: bool = False
    constant: torch.Tensor | None = None
    box: TensorSlice

    def on(self, part: torch.Tensor, generator: torch.Generator) -> None:
        """Applies the operation to a part of the box, in place."""
        assert self.operation is not None
        if self.draws:
            self.operation(part, *self.arguments, generator=generator)
        else:
            self.operation(part, *self.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The operations that give a weight or buffer its initial values.

    The values follow from `name`: tied weights all have the name of the first.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    steps: tuple[InitStep, ...]


class NotReplayableError(Exception):
    """A weight's initial values come from operations that cannot be done on a part of it."""


class _Event(NamedTuple):
    """A write to a view of a storage; `operation` and `constant` are None if it is unknown."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    name: str
    operation: Operation | None = None
    arguments: tuple[Any, ...] = ()
    draws: bool = False
    constant: torch.Tensor | None = None


class InitRecorder(TorchDispatchMode):
    """Records writes to tensors on the meta device while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # by identity; holding the storage keeps its address from being reused
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

    def note(self, name: str, target: torch.Tensor, **write: Any) -> None:
        """Records a write to `target`; without an operation or a constant it is unknown."""
        if not target.is_meta:
            return
        event = _Event(
            size=tuple(target.shape),
            stride=target.stride(),
            offset=int(target.storage_offset()),
            name=name,
            **write,
        )
        self._events(target).append(event)

    def recipes(self, module: nn.Module) -> dict[str, Recipe]:
        """Returns a recipe for each weight and buffer on the meta device, under all its names.

        Raises:
            NotReplayableError: If one of them has none; names it.
        """
        recipes: dict[str, Recipe] = {}
        by_tensor: dict[int, Recipe] = {}
        weights = module.named_parameters(remove_duplicate=False)
        for name, tensor in chain(weights, module.named_buffers(remove_duplicate=False)):
            if tensor.is_meta:
                if id(tensor) not in by_tensor:
                    by_tensor[id(tensor)] = self.recipe(name, tensor)
                recipes[name] = by_tensor[id(tensor)]
        return recipes

    def recipe(self, name: str, tensor: torch.Tensor) -> Recipe:
        """Returns the recipe of a weight or buffer on the meta device.

        Raises:
            NotReplayableError: If it has none; names it.
        """
        shape = tuple(tensor.shape)
        steps: list[InitStep] | None = []
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
            raise NotReplayableError(name)
        return Recipe(name=name, shape=shape, dtype=tensor.dtype, steps=tuple(steps))

    def _events(self, tensor: torch.Tensor) -> list[_Event]:
        storage = tensor.untyped_storage()
        return self._written.setdefault(storage._cdata, (storage, []))[1]

    def _note_writes(self, func: Any, name: str, args: Sequence[Any], kwargs: Any) -> None:
        written = [
            value
            for value, argument in zip(args, func._schema.arguments, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        for tensor in (*written, kwargs.get("out")):
            if isinstance(tensor, torch.Tensor):
                is_known = tensor is args[0] and name in _OVERWRITING | _CHANGING
                write = _write(func, name, args, kwargs) if is_known else {}
                self.note(name, tensor, **write)

    def _note_new(self, name: str, args: Sequence[Any], tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._written:
            return  # a view of a recorded storage
        value = args[-1] if name in ("full", "full_like", "new_full") else _NEW_VALUES.get(name)
        if isinstance(value, int | float):
            self.note("fill_", tensor, operation=torch.Tensor.fill_, arguments=(value,))
        elif name in _NEW_VALUES:
            self._events(tensor)
        else:
            self.note(name, tensor)


@contextmanager
def recording() -> Iterator[InitRecorder]:
    """Enters a recorder that also sees the initialisations of `patched_initializers`."""
    recorder = InitRecorder()
    with patched_initializers(recorder.note), recorder:
        yield recorder


def _write(func: Any, name: str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Describes a write to `args[0]`; empty if it depends on tensors without values."""
    if name == "copy_" and not args[1].is_meta:
        return {"constant": args[1].detach().expand(args[0].shape).clone()}
    rest = tuple(_plain(value) for value in args[1:])
    if any(isinstance(value, torch.Tensor) for value in rest):
        return {}
    named = {key: _plain(kwargs[key]) for key in kwargs if key != "generator"}
    return {
        "operation": functools.partial(func, **named),
        "arguments": rest,
        "draws": any(argument.name == "generator" for argument in func._schema.arguments),
    }


def _plain(value: Any) -> Any:
    is_scalar = isinstance(value, torch.Tensor) and not value.is_meta and value.dim() == 0
    return value.item() if is_scalar else value


def _step(event: _Event, shape: tuple[int, ...]) -> InitStep | None:
    if event.operation is None and event.constant is None:
        return None
    is_copy = event.constant is not None
    box = box_of_view(event.size, event.stride, event.offset, shape, ordered=is_copy)
    if box is None:
        return None
    if event.constant is None:
        return InitStep(
            operation=event.operation, arguments=event.arguments, draws=event.draws, box=box
        )
    assert event.constant.numel() == math.prod(box.sizes)
    return InitStep(operation=None, constant=event.constant.reshape(box.sizes), box=box)


def fill(
    target: torch.Tensor, recipe: Recipe, box: TensorSlice, *, seed: int, device: torch.device
) -> None:
    """Fills `target` with the values of `box`, a part of the recipe's weight.

    Values are drawn in chunks of whole lines, each with a seed of its own. So they do not
    depend on the box, and a rank never needs the memory of a whole weight.

    Args:
        target: Has the shape of `box`; may be on another device or of another type.
        recipe: Of the whole weight.
        box: In the whole weight.
        seed: Of the model's weights.
        device: Draws the values; CPU and CUDA draw different ones.
    """
    if target.numel() == 0:
        return
    if not recipe.steps:  # the model's own code leaves uninitialised memory
        target.zero_()
        return
    shape, box = _with_lines(recipe.shape, box)
    count, width = math.prod(shape[:-1]), shape[-1]
    out = target if target.is_contiguous() else torch.empty_like(target).contiguous()
    rows = out.view(-1, box.sizes[-1])
    lines = line_numbers(box, shape)
    chunk_lines = max(1, CHUNK_ELEMENTS // width)
    generator = torch.Generator(device)
    begin = 0
    while begin < len(lines):
        index = int(lines[begin]) // chunk_lines
        first, last = index * chunk_lines, min((index + 1) * chunk_lines, count)
        end = int(torch.searchsorted(lines, last))
        is_all = (end - begin, box.sizes[-1]) == (last - first, width)
        direct = is_all and (out.dtype, out.device) == (recipe.dtype, device)
        if direct:
            chunk = rows[begin:end]
        else:
            chunk = torch.empty(last - first, width, dtype=recipe.dtype, device=device)
        generator.manual_seed(_seed(seed, recipe.name, index))
        for step in recipe.steps:
            _apply(step, chunk, first, shape, generator)
        if not direct:
            part = _rows(chunk, lines[begin:end] - first)
            rows[begin:end].copy_(part.narrow(1, box.starts[-1], box.sizes[-1]))
        begin = end
    if out is not target:
        target.copy_(out)


def _apply(
    step: InitStep, chunk: torch.Tensor, first: int, shape: Shape, generator: torch.Generator
) -> None:
    """Applies a step to the lines of a weight that begin at `first`."""
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
    if not _are_consecutive(numbers):  # then `part` was a copy
        chunk[numbers.to(chunk.device), box.starts[-1] : box.ends[-1]] = part


def _rows(lines: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    if _are_consecutive(numbers):
        return lines[int(numbers[0]) : int(numbers[-1]) + 1]  # a view
    return lines[numbers.to(lines.device)]  # a copy


def _are_consecutive(numbers: torch.Tensor) -> bool:
    return int(numbers[-1] - numbers[0]) + 1 == len(numbers)


def _with_lines(shape: Shape, box: TensorSlice) -> tuple[Shape, TensorSlice]:
    if shape:  # a scalar counts as a line of one element
        return shape, box if box.sizes else TensorSlice(starts=(0,), sizes=(1,))
    return (1,), TensorSlice(starts=(0,), sizes=(1,))


def _seed(seed: int, name: str, chunk: int) -> int:
    digest = hashlib.blake2b(f"{seed}/{name}/{chunk}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")
