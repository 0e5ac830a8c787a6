"""Products of tokens with the weights of the experts that they are routed to, without values.

Mixtures of experts train with `aten::_grouped_mm`: tokens lie sorted by expert, and one call
multiplies each group with the weights of its own expert, so that only routed tokens cost work.
How large the groups are is known to values alone; the shape of the result is not concerned.
torch's own shape function takes bf16 only, while the kernels take fp32 too, so that a pass
without memory needs this one.

Source: `aten/src/ATen/native/GroupedMMUtils.h` of torch 2.13.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

GROUPED_MM = torch.ops.aten._grouped_mm.default
_ALIGNMENT_BYTES = 16  # of rows, which the kernels insist on
_MATRIX = 2  # dimensions; with one more it is a stack of them, one for each expert
_FAKE_LOGGER = "torch._subclasses.fake_tensor"


class GroupedProducts(TorchDispatchMode):
    """Inside of a fake mode: gives grouped products their results."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        run = grouped_result if func is GROUPED_MM else func
        return run(*args, **(kwargs or {}))


def grouped_result(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,  # noqa: ARG001 - of the operator, which refuses it too
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A tensor like the result of a grouped product, of whatever kind `left` is.

    Raises:
        RuntimeError: On operands that the kernels refuse.
    """
    for operand in (left, right):
        _refuse_unaligned(operand)
    if (left.dim() == _MATRIX) != (right.dim() == _MATRIX):
        shape: tuple[int, ...] = (left.shape[-2], right.shape[-1])
    else:
        groups = offs.shape[0] if left.dim() == _MATRIX and offs is not None else left.shape[0]
        shape = (groups, left.shape[-2], right.shape[-1])
    return torch.empty(shape, dtype=out_dtype or left.dtype, device=left.device)


def grouped_sizes(
    left: torch.Tensor, right: torch.Tensor, offs: torch.Tensor
) -> tuple[int, float, float, float]:
    """Groups, and rows, columns and inner size of each, if tokens are spread evenly."""
    groups = offs.shape[0]
    rows, columns, inner = map(float, (left.shape[-2], right.shape[-1], left.shape[-1]))
    if left.dim() == _MATRIX and right.dim() == _MATRIX:
        inner /= groups  # the gradient of weights: each expert's is summed over its own tokens
    elif left.dim() == _MATRIX:
        rows /= groups
    else:
        columns /= groups
    return groups, rows, columns, inner


def grouped_flops(left: torch.Size, right: torch.Size, *_: object, **__: object) -> int:
    """Operations of a grouped product, for torch's counter: each routed token counts once."""
    rows, columns, inner = left[-2], right[-1], left[-1]
    groups = 1 if _MATRIX in (len(left), len(right)) else left[0]
    return 2 * groups * rows * columns * inner


FLOP_FORMULAS: dict[Any, Any] = {torch.ops.aten._grouped_mm: grouped_flops}


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """Keeps torch from printing a traceback where an operator cannot run without values.

    What is raised says the same, and is told in one sentence.
    """
    logger = logging.getLogger(_FAKE_LOGGER)
    was_disabled = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = was_disabled


def _refuse_unaligned(operand: torch.Tensor) -> None:
    strides = [stride for stride in operand.stride()[-2:] if stride != 1]
    if any(stride * operand.element_size() % _ALIGNMENT_BYTES for stride in strides):
        raise RuntimeError("grouped products need rows of a multiple of 16 bytes")
