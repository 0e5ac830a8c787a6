"""Values in a trace: the batch has some, and so has what is computed out of it alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode

from workers.models.experts import GROUPED_MM, grouped_result
from workers.tracing.operators import dense_bytes, tensors

_MOST_BYTES = 2**26  # of results that are computed with their values
_UNSHAPED = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)


class BatchValues(TorchDispatchMode):
    """Inside of a fake mode: computes what follows from real tensors alone, as a step would.

    Models look at masks to choose a kernel.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        return call(func, args, kwargs or {}, tuple(tensors(args, kwargs)))


def call(func: Any, args: Any, kwargs: Any, read: tuple[torch.Tensor, ...]) -> Any:
    """The operator's result: with values if all that it reads has some and it is not large."""
    if func is GROUPED_MM:
        return grouped_result(*args, **kwargs)
    if not read or any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in read):
        return func(*args, **kwargs)
    if not func._schema.is_mutable and not any(tag in func.tags for tag in _UNSHAPED):
        fake = func(*args, **kwargs)
        if sum(map(dense_bytes, tensors(fake))) > _MOST_BYTES:
            return fake
    with unset_fake_temporarily():
        return func(*args, **kwargs)
