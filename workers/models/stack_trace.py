"""A forward pass without weights, which shows how a model calls its parts.

A list of architectures would age with transformers; a pass does not lie. It runs on fake tensors
of the meta device: no memory, and code that would look at values knows that there are none.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from workers.models.experts import GroupedProducts, quiet_fakes
from workers.models.stage_placeholders import BlockForm, LeftEarlyError, Passage, Passing, Zeros

_TRACED = 3  # blocks that are really gone through before the last one: their class is the same


class NoStackError(ValueError):
    """A model is no stack that can be cut; the text follows its name in a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What a pass showed: the parts that are called before the blocks, and a block's form."""

    before: tuple[str, ...]
    form: BlockForm


def without_memory(module: nn.Module) -> nn.Module:
    """A copy on the meta device, in which all weights have gradients.

    Attention is the plain one, if the model has a choice: kernels may know no tensors without
    memory, and their masks are made by looking at values. So is what a model does in training
    only, such as to leave out a block by chance.
    """
    memo: dict[int, Any] = {}
    for weight in module.parameters():
        empty = torch.empty_like(weight, device="meta")
        memo[id(weight)] = nn.Parameter(empty, requires_grad=weight.is_floating_point())
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    copied = copy.deepcopy(module, memo)
    choose_attention = getattr(copied, "set_attn_implementation", None)
    if choose_attention is not None:
        choose_attention("eager")
    return copied.eval()


def trace(
    module: nn.Module, blocks: tuple[str, ...], parts: tuple[str, ...], inputs: Mapping[str, Any]
) -> Calls:
    """Goes through a model once, and once more to its first block with zeros for embeddings.

    Raises:
        NoStackError: If hidden states do not go from block to block and nowhere else.
    """
    skeleton = without_memory(module)
    watcher = _Watcher([skeleton.get_submodule(name) for name in blocks])
    for part in parts:
        watcher.watch(part, skeleton.get_submodule(part))
    with FakeTensorMode(allow_non_fake_inputs=True), GroupedProducts(), quiet_fakes():
        output = skeleton(**_on_meta(inputs))
        form = watcher.form()
        before = tuple(part for part in parts if watcher.places.get(part) == "before")
        kept = (blocks[-1], *(part for part in parts if part not in before))
        _refuse_other_ways(skeleton, output, kept)
    assert watcher.hidden is not None
    received = _empty_like(watcher.hidden)
    passage = Passage()
    for part in before:
        skeleton.set_submodule(part, Zeros(passage))
    _Front(skeleton, blocks[0], form, passage).shape(inputs, received)
    return Calls(before=before, form=form)


class HiddenShape:
    """The shape and type of the hidden states between blocks, for batches of any shape."""

    def __init__(self, module: nn.Module, first_block: str, form: BlockForm) -> None:
        self._front = _Front(without_memory(module), first_block, form, Passage())
        self._known: dict[tuple[object, ...], torch.Tensor] = {}

    def of(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Hidden states without memory, as the first block is given them."""
        key = tuple((name, tuple(tensor.shape)) for name, tensor in inputs.items())
        if key not in self._known:
            self._known[key] = self._front.shape(inputs, None)
        return self._known[key]


class _Front:
    """A model up to its first block, which it does not enter."""

    def __init__(
        self, skeleton: nn.Module, first_block: str, form: BlockForm, passage: Passage
    ) -> None:
        block = skeleton.get_submodule(first_block)
        skeleton.set_submodule(first_block, Passing(block, form, passage.leave))
        self._module, self._passage = skeleton, passage

    def shape(
        self, inputs: Mapping[str, torch.Tensor], received: torch.Tensor | None
    ) -> torch.Tensor:
        self._passage.enter(received)
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        with torch.no_grad(), fake, GroupedProducts(), quiet_fakes():
            try:
                self._module(**_on_meta(inputs))
            except LeftEarlyError:
                hidden = self._passage.collect()
        if received is not None and hidden.shape != received.shape:
            raise NoStackError(
                "computes more than hidden states with the weights before its blocks"
            )
        return _empty_like(hidden)


class _Watcher:
    """Notes in a pass which parts are called when, and follows the hidden states."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.places: dict[str, str] = {}
        self.hidden: torch.Tensor | None = None  # as last seen
        self._blocks, self._met = blocks, 0
        self._place: int | str = 0
        self._empty: int | None = None
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(self._enter, with_kwargs=True)
            block.register_forward_hook(self._leave)
            if _TRACED <= index < len(blocks) - 1:
                block.forward = self._hand_on

    def watch(self, name: str, part: nn.Module) -> None:
        def note(*_: Any) -> None:
            place = {0: "before", len(self._blocks): "behind"}.get(self._met)
            if place is None:
                raise NoStackError(f"calls {name} between its blocks")
            if self.places.setdefault(name, place) != place:
                raise NoStackError(f"calls {name} both before and behind its blocks")

        for module in part.modules():
            module.register_forward_pre_hook(note)

    def form(self) -> BlockForm:
        if self._met != len(self._blocks):
            raise NoStackError("does not call each of its blocks")
        return BlockForm(place=self._place, empty=self._empty)

    def _hand_on(self, *args: Any, **kwargs: Any) -> Any:
        form = BlockForm(place=self._place, empty=self._empty)
        return form.given(form.taken(args, kwargs))

    def _enter(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._met == len(self._blocks) or block is not self._blocks[self._met]:
            raise NoStackError("does not call its blocks once each, in their order")
        named = [*enumerate(args), *kwargs.items()]
        if self._met == 0:
            self._place = next((name for name, value in named if _is_float(value)), 0)
        given = dict(named).get(self._place)
        follows = self._met == 0 or given is self.hidden
        if given is None or not _is_float(given) or not follows:
            raise NoStackError("does not hand hidden states from block to block as they are")
        others = (value for name, value in named if name != self._place)
        if any(tensor.requires_grad for tensor in _tensors(list(others))):
            raise NoStackError("gives its blocks more than hidden states that depends on weights")
        self.hidden = given.detach()  # what reaches further back than this block, goes around it
        if isinstance(self._place, str):
            return args, kwargs | {self._place: self.hidden}
        return (*args[: self._place], self.hidden, *args[self._place + 1 :]), kwargs

    def _leave(self, _: nn.Module, __: Any, output: Any) -> None:
        hidden, *rest = output if isinstance(output, tuple) else (output,)
        assert self.hidden is not None
        if not _is_float(hidden) or hidden.shape != self.hidden.shape or [*_tensors(rest)]:
            raise NoStackError("has blocks that do not return hidden states alone")
        self._empty = len(rest) if isinstance(output, tuple) else None
        self.hidden = hidden
        self._met += 1


def _refuse_other_ways(skeleton: nn.Module, output: object, kept: tuple[str, ...]) -> None:
    """Each block's input was cut off: only the last block and what follows may have gradients."""
    ends = [tensor.sum() for tensor in _tensors(output) if tensor.requires_grad]
    if not ends:
        raise NoStackError("returns nothing that depends on its weights")
    names, weights = zip(*skeleton.named_parameters(), strict=True)
    reached = torch.autograd.grad(ends, weights, allow_unused=True)
    own = {id(weight) for part in kept for weight in skeleton.get_submodule(part).parameters()}
    for name, weight, gradient in zip(names, weights, reached, strict=True):
        if gradient is not None and id(weight) not in own:
            raise NoStackError(f"uses {name} behind its blocks, past their hidden states")


def _empty_like(hidden: torch.Tensor) -> torch.Tensor:
    """A tensor of no fake mode, so that another one takes it."""
    return torch.empty(hidden.shape, dtype=hidden.dtype, device="meta")


def _on_meta(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.empty_like(tensor, device="meta") for name, tensor in inputs.items()}


def _is_float(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _tensors(member)
    elif isinstance(value, tuple | list):
        for member in value:
            yield from _tensors(member)
    elif isinstance(getattr(value, "loss", None), torch.Tensor):
        yield from _tensors(getattr(value, "loss", None))
