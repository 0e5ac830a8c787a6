"""Recorder of a step: its operators, their parts of the model, and all memory.

It only records; `pass_costs` evaluates the log.
"""

import weakref
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from workers.tracing.operators import OperatorWork, dense_bytes, tensors, work_of

_MOST_BYTES = 2**26  # of results to compute with their values
_UNSHAPED = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
EMBEDDING = -1  # the part outside all blocks and before the last one; blocks count from 0
HEAD = -2  # the part after the last block
_ACCUMULATES = 2**64 - 1  # sequence number of autograd's nodes that accumulate gradients


def run_operator(func: Any, args: Any, kwargs: Any, read: tuple[torch.Tensor, ...]) -> Any:
    """Returns an operator's result, with values if all inputs have some and it is not large."""
    if not read or any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in read):
        return func(*args, **kwargs)
    if not func._schema.is_mutable and not any(tag in func.tags for tag in _UNSHAPED):
        fake = func(*args, **kwargs)
        if sum(map(dense_bytes, tensors(fake))) > _MOST_BYTES:
            return fake
    with unset_fake_temporarily():
        return func(*args, **kwargs)


@dataclass(slots=True)
class Storage:
    """A block of memory, with the indices of its first operator and of the one after its last."""

    size_bytes: int
    made_at: int
    part: int  # the part that made it, or that it enters as hidden states
    kept: bool  # by selective recomputation, as the result of an expensive operator
    gone_at: int | None = None
    behind: int | None = None  # the block that returned it


@dataclass(slots=True)
class Operation:
    """One call of an operator."""

    part: int
    work: OperatorWork
    kept: bool


@dataclass(slots=True)
class Log:
    """Record of one step; times are indices in `operations`."""

    operations: list[Operation] = field(default_factory=list)
    storages: list[Storage] = field(default_factory=list)
    hidden_bytes: dict[int, int] = field(default_factory=dict)  # input of each part
    uses: dict[int, set[int]] = field(default_factory=dict)  # for each weight, its readers
    forward_ends: int = 0
    gradients: list[Storage] = field(default_factory=list)  # of weights


class Recorder(TorchDispatchMode):
    """Writes a `Log` while it is entered inside a fake mode; the batch keeps its values."""

    def __init__(self, module: nn.Module, kept_operators: frozenset[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.log = Log()
        self.running: Any = None  # the current operator, or the one that failed
        self._kept_operators = kept_operators
        self._part, self._backward = EMBEDDING, False
        self._starts: list[int] = [0]  # autograd's sequence number at the start of each part
        self._parts: list[int] = [EMBEDDING]
        self._last_end, self._last_block = 0, EMBEDDING
        self._alive: dict[int, tuple[weakref.ref[Any], Storage]] = {}
        self._weights = {_key(weight): i for i, weight in enumerate(module.parameters())}
        self._buffers = {_key(buffer) for buffer in module.buffers()}
        self._reads: list[tuple[int, int, int]] = []  # weight, part, time

    def take_in(self, inputs: Mapping[str, Any]) -> None:
        """Counts the batch, which stays in memory for the whole step."""
        for tensor in tensors(dict(inputs)):
            self._track(tensor, EMBEDDING, kept=False)

    def enter(self, block: int, hidden: torch.Tensor | None) -> None:
        """Records that forward enters a block with these hidden states."""
        self._begin_part(block)
        if hidden is not None:
            self.log.hidden_bytes.setdefault(block, dense_bytes(hidden))
            if storage := self._storage_of(hidden):
                storage.part, storage.behind = block, None

    def leave(self, block: int, hidden: torch.Tensor | None) -> None:
        """Records that forward leaves a block with these hidden states."""
        self._begin_part(EMBEDDING)
        self._last_block, self._last_end = block, len(self.log.operations)
        if hidden is not None:
            self.log.hidden_bytes[HEAD] = dense_bytes(hidden)
            if storage := self._storage_of(hidden):
                storage.behind = block

    def end_forward(self) -> None:
        """Ends forward: assigns all after the last block to the head; what is left is saved."""
        log, head_start = self.log, self._last_end
        log.forward_ends = len(log.operations)
        self._parts[-1] = self._part = HEAD
        for operation in log.operations[head_start:]:
            operation.part = HEAD
        for storage in log.storages:
            if storage.behind is not None:
                storage.part = HEAD if storage.behind == self._last_block else EMBEDDING
            elif storage.made_at >= head_start and storage.part == EMBEDDING:
                storage.part = HEAD
        for weight, part, time in self._reads:
            is_head = part == EMBEDDING and time >= head_start
            log.uses.setdefault(weight, set()).add(HEAD if is_head else part)
        self._backward = True

    def end_backward(self, module: nn.Module) -> None:
        """Ends backward: marks the storages of gradients of weights."""
        for weight in module.parameters():
            if weight.grad is not None and (storage := self._storage_of(weight.grad)):
                self.log.gradients.append(storage)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        read = tuple(tensors(args, kwargs))
        self.running = func
        result = run_operator(func, args, kwargs, read)
        self.running = None
        if func.is_view:
            return result
        part, kept = self._current_part(), func in self._kept_operators
        operations = self.log.operations
        if not self._backward:
            self._reads += [
                (self._weights[key], part, len(operations))
                for key in map(_key, read)
                if key in self._weights
            ]
        operations.append(Operation(part, work_of(func, args, kwargs, result), kept))
        for tensor in tensors(result):
            self._track(tensor, part, kept=kept)
        return result

    def _current_part(self) -> int:
        if self._backward:
            node = torch._C._current_autograd_node()
            number = _ACCUMULATES if node is None else node._sequence_nr()
            if number != _ACCUMULATES:
                self._part = self._parts[bisect_right(self._starts, number) - 1]
        return self._part

    def _begin_part(self, part: int) -> None:
        self._part = part
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._parts.append(part)

    def _storage_of(self, tensor: torch.Tensor) -> Storage | None:
        tracked = self._alive.get(_key(tensor))
        return None if tracked is None else tracked[1]

    def _track(self, tensor: torch.Tensor, part: int, *, kept: bool) -> None:
        """Follows the tensor's storage, if it is a new one, until it is freed."""
        memory = tensor.untyped_storage()
        key: int = memory._cdata
        if key in self._alive or key in self._weights or key in self._buffers:
            return
        operations, alive = self.log.operations, self._alive
        storage = Storage(memory.nbytes(), max(len(operations) - 1, 0), part, kept)

        def on_free(_: object) -> None:
            storage.gone_at = len(operations)
            del alive[key]

        alive[key] = (weakref.ref(memory, on_free), storage)
        self.log.storages.append(storage)


def _key(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
