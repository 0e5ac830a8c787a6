"""Selective activation checkpointing: what a block saves for its recomputation, and where."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import create_selective_checkpoint_contexts

_SAVED_NAMES = (
    *("aten::mm", "aten::addmm", "aten::_scaled_mm", "aten::_grouped_mm"),
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    *("aten::_scaled_dot_product_fused_attention_overrideable", "flash_attn::_flash_attn_forward"),
    *("flash_attn::_flash_attn_varlen_forward", "flash_attn_3::_flash_attn_forward"),
    *("flash_attn_3::fwd", "_c10d_functional::all_reduce"),
    "_c10d_functional::reduce_scatter_tensor",
)


_COLLECTIVES = "_c10d_functional"
_RESTORE = methodcaller("restore")
_Results = dict[Any, deque[Any]]  # by operator, in the order of calls
Contexts = tuple[TorchDispatchMode, TorchDispatchMode]
ContextMaker = Callable[[], Any]  # of a block's forward pass and of its recomputation


def saved_operators() -> frozenset[Any]:
    """Returns the operators whose results are saved, among those registered in this process."""
    names = (name.split("::") for name in _SAVED_NAMES)
    packets = (getattr(getattr(torch.ops, space), operator, None) for space, operator in names)
    return frozenset(packet.default for packet in packets if packet is not None)


def selective_contexts(*, offload: bool, compiled: bool) -> ContextMaker:
    """Returns the `context_fn` of a block's checkpoint that saves results of matmuls and attention.

    Args:
        offload: Saved tensors are kept in host memory.
        compiled: Blocks are compiled; the compiler supports only torch's own contexts.
    """
    if compiled:
        return partial(create_selective_checkpoint_contexts, list(saved_operators()))
    return partial(saving_contexts, on_host=offload)


def saving_contexts(*, on_host: bool) -> Contexts:
    """Returns the contexts of a block's forward pass and of its recomputation (`context_fn`).

    Args:
        on_host: Saved tensors are kept in host memory.
    """
    results: _Results = defaultdict(deque)
    operators = saved_operators()
    return _SavingMode(operators, results, on_host=on_host), _RestoringMode(operators, results)


class _SavingMode(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], results: _Results, *, on_host: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._results, self._on_host = operators, results, on_host
        self._by_storage: dict[int, list[_Saved]] = defaultdict(list)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        for tensor in mutated(func, args, kwargs):
            for saved in self._by_storage.pop(_storage_id(tensor), ()):
                saved.detach_from_storage()
        result = func(*args, **kwargs)
        if func in self._operators:
            if func.namespace == _COLLECTIVES:  # asynchronous
                torch.ops._c10d_functional.wait_tensor(result)
            self._results[func].append(tree_map_only(torch.Tensor, self._save, result))
        return result

    def __exit__(self, *error: Any) -> None:
        self._by_storage.clear()  # else tensors would outlive their recomputation
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    def _save(self, tensor: torch.Tensor) -> _Saved:
        saved = _Saved(tensor.detach(), on_host=self._on_host)
        self._by_storage[_storage_id(tensor)].append(saved)
        return saved


class _RestoringMode(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], results: _Results) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._results = operators, results

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in self._operators:
            return func(*args, **(kwargs or {}))
        return tree_map_only(_Saved, _RESTORE, self._results[func].popleft())


class _Saved:
    """A tensor saved for the recomputation, or a copy of it in host memory.

    The tensor shares its storage with the block until an operator writes to it. The copy is
    page-locked if the tensor comes from a device.
    """

    def __init__(self, tensor: torch.Tensor, *, on_host: bool) -> None:
        self._tensor, self._device, self._is_shared = tensor, tensor.device, not on_host
        if on_host:
            self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._tensor.copy_(tensor, non_blocking=tensor.is_cuda)

    def restore(self) -> torch.Tensor:
        """Returns the tensor on its original device."""
        return self._tensor.to(self._device, non_blocking=True)

    def detach_from_storage(self) -> None:
        """Prepares for a write to the tensor's original storage."""
        if self._is_shared:
            self._tensor = self._tensor.clone()


def mutated(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """Yields the tensors that an operator writes to, by its schema."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _storage_id(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
