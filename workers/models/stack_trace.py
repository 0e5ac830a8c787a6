"""A forward pass without weights that shows how a model calls its parts.

A list of architectures would age with transformers. The pass runs on fake tensors of the meta
device: it takes no memory, and code that would read values can tell that there are none.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.stage_placeholders import (
    BlockForm,
    BlockPlaceholder,
    EmbeddingPlaceholder,
    EndOfStageError,
    HiddenStateChannel,
)
from workers.plain_torch.loss import on_device

_META = torch.device("meta")
_TRACED = 3  # blocks that really run before the last one; the others are of the same class


class NoStackError(ValueError):
    """A model is not a stack that can be cut; the text reads as the rest of a sentence."""


def without_memory(module: nn.Module) -> nn.Module:
    """Returns a copy on the meta device, in evaluation mode, whose weights require gradients.

    Attention is eager if the model has a choice: kernels may refuse tensors without memory,
    and code that makes their masks reads values. Evaluation mode avoids what models do only in
    training, such as skipping a block at random.
    """
    memo: dict[int, Any] = {}
    for weight in module.parameters():
        empty = torch.empty_like(weight, device="meta")
        memo[id(weight)] = nn.Parameter(empty, requires_grad=weight.is_floating_point())
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    skeleton = copy.deepcopy(module, memo)
    set_attention = getattr(skeleton, "set_attn_implementation", None)
    if set_attention is not None:
        set_attention("eager")
    return skeleton.eval()


def trace_calls(
    module: nn.Module, blocks: tuple[str, ...], parts: tuple[str, ...], inputs: Mapping[str, Any]
) -> tuple[tuple[str, ...], BlockForm]:
    """Runs a model once, and then as its first and its last stage, where a part is elsewhere.

    Returns:
        The parts called before the blocks, and the form of a block.

    Raises:
        NoStackError: If blocks do not pass hidden states to each other, and nothing else.
    """
    skeleton = without_memory(module)
    watcher = _Watcher([skeleton.get_submodule(name) for name in blocks])
    for part in parts:
        watcher.watch(part, skeleton.get_submodule(part))
    with FakeMemory(), without_fake_tensor_logs():
        output = skeleton(**on_device(inputs, _META))
        form = watcher.form()
        before = tuple(part for part in parts if watcher.sides.get(part) == "before")
        last_parts = (blocks[-1], *(part for part in parts if part not in before))
        _refuse_bypasses(skeleton, output, last_parts)
    assert watcher.hidden is not None
    after = tuple(part for part in parts if part not in before)
    _try_ends(module, (before, blocks, after), form, inputs, _empty_like(watcher.hidden))
    return before, form


def _try_ends(
    module: nn.Module,
    parts: tuple[tuple[str, ...], ...],
    form: BlockForm,
    inputs: Mapping[str, Any],
    received: torch.Tensor,
) -> None:
    """Runs a model as the first and as the last stage of a pipeline, each without its blocks."""

    def receive(hidden: torch.Tensor) -> torch.Tensor:
        if hidden.shape != received.shape:
            raise NoStackError("uses weights before its blocks for more than hidden states")
        return received

    passage, (before, blocks, after) = HiddenStateChannel(), parts
    passage.enter(received)
    embeddings = {name: EmbeddingPlaceholder(passage) for name in before}
    stack = {name: BlockPlaceholder(module.get_submodule(name), form) for name in blocks}
    first = module.get_submodule(blocks[0])
    leaves = {blocks[0]: BlockPlaceholder(first, form, passage.leave)}
    _run_stage(module, {**stack, **leaves, **{name: nn.Identity() for name in after}}, inputs)
    receives = {blocks[0]: BlockPlaceholder(first, form, receive)}
    _run_stage(module, {**stack, **receives, **embeddings}, inputs)
    if any(placeholder.is_overwritten for placeholder in embeddings.values()):
        raise NoStackError("writes into its embeddings in place, which a later stage does not have")


def _run_stage(
    module: nn.Module, placeholders: Mapping[str, nn.Module], inputs: Mapping[str, Any]
) -> None:
    stage = without_memory(module)
    for name, placeholder in placeholders.items():
        stage.set_submodule(name, placeholder)
    with torch.no_grad(), FakeMemory(), without_fake_tensor_logs():
        try:
            stage(**on_device(inputs, _META))
        except EndOfStageError:
            return
        except AttributeError as error:
            for part, placeholder in placeholders.items():
                if placeholder is error.obj:
                    reason = f"reads {error.name} of {part}, which only one stage has"
                    raise NoStackError(reason) from error
            raise


class HiddenShape:
    """The shape and type of the hidden states between blocks, for batches of any shape."""

    def __init__(self, module: nn.Module, first_block: str, form: BlockForm) -> None:
        self._module, self._passage = without_memory(module), HiddenStateChannel()
        block = self._module.get_submodule(first_block)
        self._module.set_submodule(first_block, BlockPlaceholder(block, form, self._passage.leave))
        self._cache: dict[tuple[object, ...], torch.Tensor] = {}

    def of(self, inputs: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Returns hidden states without memory, as the first block receives them."""
        key = shapes_of(inputs)
        if key not in self._cache:
            with torch.no_grad(), FakeMemory(), without_fake_tensor_logs():
                with contextlib.suppress(EndOfStageError):
                    self._module(**on_device(inputs, _META))
                self._cache[key] = _empty_like(self._passage.collect())
        return self._cache[key]


class _Watcher:
    """Records when a pass calls each part, and follows the hidden states."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        self.sides: dict[str, str] = {}  # of parts: "before" or "after" the blocks
        self.hidden: torch.Tensor | None = None  # the latest
        self._blocks, self._calls = blocks, 0
        self._position: int | str = 0
        self._empty: int | None = None
        for index, block in enumerate(blocks):
            block.register_forward_pre_hook(self._enter, with_kwargs=True)
            block.register_forward_hook(self._leave)
            if _TRACED <= index < len(blocks) - 1:
                block.forward = self._pass_through

    def watch(self, name: str, part: nn.Module) -> None:
        def note(*_: Any) -> None:
            side = {0: "before", len(self._blocks): "after"}.get(self._calls)
            if side is None:
                raise NoStackError(f"calls {name} between its blocks")
            if self.sides.setdefault(name, side) != side:
                raise NoStackError(f"calls {name} both before and after its blocks")

        for module in part.modules():
            module.register_forward_pre_hook(note)

    def form(self) -> BlockForm:
        if self._calls != len(self._blocks):
            raise NoStackError("does not call each of its blocks")
        return BlockForm(place=self._position, empty=self._empty)

    def _pass_through(self, *args: Any, **kwargs: Any) -> Any:
        form = BlockForm(place=self._position, empty=self._empty)
        return form.given(form.taken(args, kwargs))

    def _enter(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._calls == len(self._blocks) or block is not self._blocks[self._calls]:
            raise NoStackError("does not call each of its blocks once, in order")
        arguments = [*enumerate(args), *kwargs.items()]
        if self._calls == 0:
            self._position = next((name for name, value in arguments if _is_float(value)), 0)
        hidden = dict(arguments).get(self._position)
        follows = self._calls == 0 or hidden is self.hidden
        if hidden is None or not _is_float(hidden) or not follows:
            raise NoStackError("does not pass hidden states unchanged from block to block")
        others = (value for name, value in arguments if name != self._position)
        if any(tensor.requires_grad for tensor in _tensors(list(others))):
            raise NoStackError("passes its blocks other values that depend on weights")
        self.hidden = hidden.detach()  # a gradient that reaches further back bypasses the block
        if isinstance(self._position, str):
            return args, kwargs | {self._position: self.hidden}
        return (*args[: self._position], self.hidden, *args[self._position + 1 :]), kwargs

    def _leave(self, _: nn.Module, __: Any, output: Any) -> None:
        hidden, *rest = output if isinstance(output, tuple) else (output,)
        assert self.hidden is not None
        if not _is_float(hidden) or hidden.shape != self.hidden.shape or [*_tensors(rest)]:
            raise NoStackError("has blocks that return more than hidden states")
        self._empty = len(rest) if isinstance(output, tuple) else None
        self.hidden = hidden
        self._calls += 1


def _refuse_bypasses(skeleton: nn.Module, output: object, last_parts: tuple[str, ...]) -> None:
    """Refuses weights that reach the output other than through the blocks.

    Each block's input was detached, so that only weights of the last block and the parts after
    it may have gradients.
    """
    ends = [tensor.sum() for tensor in _tensors(output) if tensor.requires_grad]
    if not ends:
        raise NoStackError("returns nothing that depends on its weights")
    names, weights = zip(*skeleton.named_parameters(), strict=True)
    gradients = torch.autograd.grad(ends, weights, allow_unused=True)
    allowed = {
        id(weight) for part in last_parts for weight in skeleton.get_submodule(part).parameters()
    }
    for name, weight, gradient in zip(names, weights, gradients, strict=True):
        if gradient is not None and id(weight) not in allowed:
            raise NoStackError(f"uses {name} after its blocks, bypassing their hidden states")


def _empty_like(hidden: torch.Tensor) -> torch.Tensor:
    # belongs to no fake mode, so that another mode accepts it
    return torch.empty(hidden.shape, dtype=hidden.dtype, device="meta")


def shapes_of(inputs: Mapping[str, Any]) -> tuple[tuple[str, object], ...]:
    """Returns the shape of each input; None where it is no tensor."""
    return tuple(
        (name, tuple(value.shape) if isinstance(value, torch.Tensor) else None)
        for name, value in inputs.items()
    )


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
