"""What selective checkpointing keeps, in host memory.

Torch's own contexts keep it in a list beside autograd, which `save_on_cpu` does not reach. (Torch
has a policy that says `CPU_OFFLOAD`; `torch.compile` alone obeys it.)
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from workers.parallel.save_list import kept_operators

_COLLECTIVES = "_c10d_functional"
_Kept = dict[Any, deque[Any]]  # results by operator, in the order of calls


def keep_on_host() -> tuple[TorchDispatchMode, TorchDispatchMode]:
    """The contexts of a block's forward pass and of its recomputation (`context_fn`).

    The results are copied, so that it does no harm if the block changes them in place later.
    """
    kept: _Kept = defaultdict(deque)
    operators = kept_operators()
    return _Keeping(operators, kept), _Giving(operators, kept)


class _Keeping(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._kept = operators, kept

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in self._operators:
            if func.namespace == _COLLECTIVES:  # still under way
                torch.ops._c10d_functional.wait_tensor(result)
            self._kept[func].append(tree_map_only(torch.Tensor, _to_host, result))
        return result


class _Giving(TorchDispatchMode):
    def __init__(self, operators: frozenset[Any], kept: _Kept) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._operators, self._kept = operators, kept

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        if func not in self._operators:
            return func(*args, **(kwargs or {}))
        return tree_map_only(_OnHost, _OnHost.back, self._kept[func].popleft())


class _OnHost:
    """A tensor that waits in host memory, page-locked where a device copies from it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._device = tensor.device
        self._tensor = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        self._tensor.copy_(tensor, non_blocking=tensor.is_cuda)

    def back(self) -> torch.Tensor:
        """The tensor where it was."""
        return self._tensor.to(self._device, non_blocking=True)


def _to_host(tensor: torch.Tensor) -> _OnHost:
    return _OnHost(tensor.detach())
