"""Tensors without memory, which report a device and know their shapes."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from typing import Any, Self, final

from torch._subclasses.fake_tensor import FakeTensorMode

_LOGGER = "torch._subclasses.fake_tensor"
_POINTER_REMARK = "Accessing the data pointer of FakeTensor"  # of each copy


@final
class FakeMemory(FakeTensorMode):
    """Fake mode that a copy of a fake tensor shares.

    A fake tensor refers to its mode, so `copy.deepcopy` of a module with fake weights, as
    `nn.TransformerEncoder` makes of its layers, would copy the mode and its weak references to
    storages. Each of these gives its storage back when it goes (torch 2.13): a copy does so a
    second time, which corrupts the heap.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


@contextlib.contextmanager
def without_fake_tensor_logs() -> Iterator[None]:
    """Keeps torch from logging a traceback for an operator that cannot run without values.

    The error that it raises says the same, and reaches the user in one sentence. Its remark on
    copies of fake tensors is left out too: they look whether there is memory, and find none.
    """
    logger = logging.getLogger(_LOGGER)
    was_disabled, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_POINTER_REMARK)
            yield
    finally:
        logger.disabled = was_disabled
