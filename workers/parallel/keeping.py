"""What selective checkpointing keeps beside autograd, on the device or in host memory.

Torch's own contexts (`create_selective_checkpoint_contexts`) keep the very tensor that the block
goes on with. Where the block then changes it in place through another tensor on the same storage,
as in `y = x.matmul(w); y += bias` on three dimensions, they notice nothing and give the changed one
to the recomputation, which changes it once more: wrong gradients without a word (torch 2.13, and
DeepSpeed's ZeRO-3 computes each linear layer in this way). Here what is kept is copied before it is
changed. And torch's policy that says `CPU_OFFLOAD` is obeyed by `torch.compile` alone, whose own
operators change nothing in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from operator import methodcaller
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from workers.parallel.save_list import kept_operators

_COLLECTIVES = "_c10d_functional"
_BACK = methodcaller("back")
_Results = dict[Any, deque[Any]]  # by operator, in the order of calls
_Keeper = Callable[[torch.Tensor], "_Held"]
Contexts = tuple[TorchDispatchMode, TorchDispatchMode]


def keep_on_device() -> Contexts:
    """The contexts of a block's forward pass and of its recomputation (`context_fn`)."""
    return _contexts(_OnDevice)


def keep_on_host() -> Contexts:
    """The same, with what is kept in host memory meanwhile."""
    return _contexts(_OnHost)


def _contexts(keeper: _Keeper) -> Contexts:
    results: _Results = defaultdict(deque)
    operators = kept_operators()
    return _Keeping(operators, results, keeper), _Giving(operators, results)


class _Keeping(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], results: _Results, keeper: _Keeper) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._results, self._keeper = operators, results, keeper
        self._shared: dict[int, list[_Held]] = defaultdict(list)  # by storage

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in _changed(func, args, kwargs):
            for held in self._shared.pop(_storage(tensor), ()):
                held.part_from_it()
        result = func(*args, **kwargs)
        if func in self._operators:
            if func.namespace == _COLLECTIVES:  # still under way
                torch.ops._c10d_functional.wait_tensor(result)
            self._results[func].append(tree_map_only(torch.Tensor, self._keep, result))
        return result

    def __exit__(self, *error: Any) -> None:
        self._shared.clear()  # else it would hold on to what the recomputation is done with
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _keep(self, tensor: torch.Tensor) -> _Held:
        held = self._keeper(tensor.detach())
        self._shared[_storage(tensor)].append(held)
        return held


class _Giving(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._results = operators, results

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in self._operators:
            return func(*args, **(kwargs or {}))
        return tree_map_only(_Held, _BACK, self._results[func].popleft())


class _Held(ABC):
    """A tensor that waits for the recomputation."""

    @abstractmethod
    def back(self) -> torch.Tensor:
        """The tensor where it was."""

    @abstractmethod
    def part_from_it(self) -> None:
        """Called before the storage that the tensor had is written to."""


class _OnDevice(_Held):
    """Shares its storage with the block for as long as nobody writes to it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def back(self) -> torch.Tensor:
        return self._tensor

    def part_from_it(self) -> None:
        self._tensor = self._tensor.clone()


class _OnHost(_Held):
    """A copy in host memory, page-locked where a device copies from it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = tensor.device
        self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._tensor.copy_(tensor, non_blocking=tensor.is_cuda)

    def back(self) -> torch.Tensor:
        return self._tensor.to(self._device, non_blocking=True)

    def part_from_it(self) -> None:
        pass


def _changed(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to, as its schema says."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for place, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))


def _storage(tensor: torch.Tensor) -> int:
    """Tells storages apart that are alive."""
    address: int = tensor.untyped_storage()._cdata
    return address
