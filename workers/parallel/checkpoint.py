"""Activation checkpointing: blocks that are recomputed in backward."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from search_spaces.settings.render import CheckpointSettings

_NAMES = (
    "aten::mm",
    "aten::addmm",
    "aten::_scaled_mm",
    "aten::_grouped_mm",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_efficient_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_fused_attention_overrideable",
    "flash_attn::_flash_attn_forward",
    "flash_attn::_flash_attn_varlen_forward",
    "flash_attn_3::_flash_attn_forward",
    "flash_attn_3::fwd",
    "_c10d_functional::all_reduce",
    "_c10d_functional::reduce_scatter_tensor",
)


Policy = Callable[..., CheckpointPolicy]
_COLLECTIVES = "_c10d_functional"
_BACK = methodcaller("back")
_Results = dict[Any, deque[Any]]  # by operator, in the order of calls
_Keeper = Callable[[torch.Tensor], "_Held"]
Contexts = tuple[TorchDispatchMode, TorchDispatchMode]


def kept_operators() -> frozenset[Any]:
    """The operators whose results are kept, as far as this process knows them by now."""
    return frozenset(_existing())


def _existing() -> Iterator[Any]:
    for name in _NAMES:
        space, operator = name.split("::")
        packet = getattr(getattr(torch.ops, space), operator, None)
        if packet is not None:
            yield packet.default


def keep_policy() -> Policy:
    """What `create_selective_checkpoint_contexts` asks for each operator of a block."""
    kept = kept_operators()

    def policy(_: object, operator: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
        if operator in kept:
            return CheckpointPolicy.MUST_SAVE
        return CheckpointPolicy.PREFER_RECOMPUTE

    return policy


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


def checkpoint_blocks(
    module: nn.Module, blocks: tuple[nn.Module, ...], settings: CheckpointSettings
) -> tuple[nn.Module, ...]:
    """Wraps the chosen blocks inside `module`; returns all blocks as they now stand in it.

    Offloading goes around recomputation: what it moves is what the recomputation starts from,
    a block's input, and what selective checkpointing keeps besides.
    """
    picked = {id(blocks[index]) for index in settings.blocks}
    wrapped: dict[int, nn.Module] = {}
    options = _options(settings)

    def wrap(block: nn.Module) -> nn.Module:
        recomputed = checkpoint_wrapper(block, **options)
        wrapped[id(block)] = offload_wrapper(recomputed) if settings.offload else recomputed
        return wrapped[id(block)]

    if picked:
        apply_activation_checkpointing(
            module, checkpoint_wrapper_fn=wrap, check_fn=lambda block: id(block) in picked
        )
    return tuple(wrapped.get(id(block), block) for block in blocks)


def _options(settings: CheckpointSettings) -> dict[str, Any]:
    if settings.mode == "full":
        return {}
    if settings.compiled:  # the compiler understands torch's own contexts alone
        return {"context_fn": partial(create_selective_checkpoint_contexts, keep_policy())}
    return {"context_fn": keep_on_host if settings.offload else keep_on_device}
