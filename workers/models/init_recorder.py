"""Recorder of a model's own initialisation on the meta device, and its replay.

A weight without memory cannot be filled, but the operations that would fill it can be recorded
and done later, one weight at a time. `trunc_normal_` counts as one operation: its loop draws until
the values are in range, which it cannot see on a meta tensor.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.safety.files import packaged_table
from workers.models.stage_placeholders import Shape, TensorSlice
from workers.plain_torch.selective import mutated

_TRUNCATED = "_no_grad_trunc_normal_"  # `trunc_normal_` looks it up at each call
_OPERATORS = packaged_table(__package__, "initialization.yaml")
_OVERWRITING = frozenset(_OPERATORS["overwriting"])
_CHANGING = frozenset(_OPERATORS["changing"])
_NEW_VALUES: Mapping[str, float | None] = _OPERATORS["new_values"]
_CHUNK_ELEMENTS = 2**20  # that one seed draws

Operation = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitStep:
    """A write to a view of a weight; `operation` is None if it cannot be replayed."""

    size: Shape
    stride: Shape
    offset: int
    name: str
    operation: Operation | None = None
    arguments: tuple[Any, ...] = ()
    draws: bool = False

    def overwrites(self, elements: int) -> bool:
        """Tells if the write sets all elements of a weight, whatever they were."""
        views_all = math.prod(self.size) == elements and 0 not in self.stride
        return self.operation is not None and self.name in _OVERWRITING and views_all

    def on(self, weight: torch.Tensor, generator: torch.Generator, seeds: Iterator[int]) -> None:
        """Writes to a whole weight, each chunk of a draw with the next seed."""
        assert self.operation is not None
        view = weight.as_strided(self.size, self.stride, self.offset)
        if not self.draws:
            self.operation(view, *self.arguments)
            return
        if view.dim() == 0:
            view = view[None]
        for chunk in view.split(max(1, _CHUNK_ELEMENTS // max(1, math.prod(view.shape[1:])))):
            self.operation(chunk, *self.arguments, generator=generator.manual_seed(next(seeds)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The operations that give a weight or buffer its initial values.

    The values follow from `name`: tied weights all have the name of the first.
    """

    name: str
    shape: Shape
    dtype: torch.dtype
    steps: tuple[InitStep, ...]


class NotReplayableError(Exception):
    """A weight's initial values come from operations that depend on other values."""


class InitRecorder(TorchDispatchMode):
    """Records writes to tensors on the meta device while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # by identity; holding the storage keeps its address from being reused
        self._written: dict[int, tuple[torch.UntypedStorage, list[InitStep]]] = {}

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
        """Records a write to `target`; without an operation it is unknown."""
        if not target.is_meta:
            return
        step = InitStep(
            size=tuple(target.shape),
            stride=target.stride(),
            offset=int(target.storage_offset()),
            name=name,
            **write,
        )
        self._steps(target).append(step)

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
        steps: list[InitStep] = []
        for step in self._steps(tensor):
            steps = [step] if step.overwrites(tensor.numel()) else [*steps, step]
        is_all = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        is_known = all(step.operation is not None for step in steps)
        if not (is_known and is_all and tensor.is_contiguous()):
            raise NotReplayableError(name)
        shape = tuple(tensor.shape)
        return Recipe(name=name, shape=shape, dtype=tensor.dtype, steps=tuple(steps))

    def _steps(self, tensor: torch.Tensor) -> list[InitStep]:
        storage = tensor.untyped_storage()
        return self._written.setdefault(storage._cdata, (storage, []))[1]

    def _note_writes(self, func: Any, name: str, args: Sequence[Any], kwargs: Any) -> None:
        for tensor in mutated(func, args, kwargs):
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
            self._steps(tensor)
        else:
            self.note(name, tensor)


@contextmanager
def recording() -> Iterator[InitRecorder]:
    """Enters a recorder that sees `trunc_normal_` too."""
    recorder = InitRecorder()
    functions: dict[str, Any] = vars(nn.init)
    draw_truncated: Callable[..., torch.Tensor] = functions[_TRUNCATED]

    def truncated(
        tensor: torch.Tensor, *arguments: float, generator: torch.Generator | None = None
    ) -> torch.Tensor:
        if not tensor.is_meta:
            return draw_truncated(tensor, *arguments, generator=generator)
        write = {"operation": draw_truncated, "arguments": arguments, "draws": True}
        recorder.note("trunc_normal_", tensor, **write)
        return tensor

    functions[_TRUNCATED] = truncated
    try:
        with recorder:
            yield recorder
    finally:
        functions[_TRUNCATED] = draw_truncated


def _write(func: Any, name: str, args: Sequence[Any], kwargs: Any) -> dict[str, Any]:
    """Describes a write to `args[0]`; empty if it depends on tensors without values."""
    if name == "copy_" and not args[1].is_meta:
        return {"operation": torch.Tensor.copy_, "arguments": (args[1].detach().clone(),)}
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


def fill(
    target: torch.Tensor, recipe: Recipe, box: TensorSlice, *, seed: int, device: torch.device
) -> None:
    """Fills `target` with the values of `box`, a part of the recipe's weight.

    The whole weight is drawn, so that values do not depend on the box. It is gone afterwards, and
    a training step, which has the states of an optimizer too, needs more memory.

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
    is_whole = box.sizes == recipe.shape and target.is_contiguous()
    if is_whole and (target.dtype, target.device) == (recipe.dtype, device):
        weight = target
    else:
        weight = torch.empty(recipe.shape, dtype=recipe.dtype, device=device)
    generator, seeds = torch.Generator(device), _seeds(seed, recipe.name)
    for step in recipe.steps:
        step.on(weight, generator, seeds)
    if weight is not target:
        target.copy_(box.of(weight))


def _seeds(seed: int, name: str) -> Iterator[int]:
    for number in count():
        digest = hashlib.blake2b(f"{seed}/{name}/{number}".encode(), digest_size=7).digest()
        yield int.from_bytes(digest, "big")
