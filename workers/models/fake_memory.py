"""Tensors without memory, which report a device and know their shapes."""

import contextlib
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, final

import torch
from torch._subclasses.fake_impls import register_op_impl
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves

_LOGGER = "torch._subclasses.fake_tensor"
_INDEXED = (torch.ops.aten.index, torch.ops.aten.index_put, torch.ops.aten.index_put_)
_CPU = torch.device("cpu")
_ALIGNMENT_BYTES = 16  # of rows, as kernels of grouped products require
_MATRIX = 2  # dimensions; three are a stack of matrices, one for each expert
_POINTER_REMARK = "Accessing the data pointer of FakeTensor"  # of each copy


@final
class FakeMemory(FakeTensorMode):
    """Fake mode that a copy of a fake tensor shares.

    A fake tensor refers to its mode, so `copy.deepcopy` of a module with fake weights, as
    `nn.TransformerEncoder` makes of its layers, would copy the mode and its weak references to
    storages. Each of these gives its storage back when it goes (torch 2.13): a copy does so a
    second time, which corrupts the heap.

    With `keeps_integers`, integers of a batch and what follows from them alone keep their values,
    which models read as grids of images or lengths of sounds. No layer is dropped: its draw is 1.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.keeps_integers = False

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.keeps_integers and func is torch.ops.aten.rand.default and not args[0]:
            return torch.ones(())
        if self.keeps_integers and _is_of_integers(func, args, kwargs):
            return func(*args, **kwargs)
        if self.keeps_integers and func.overloadpacket in _INDEXED:
            args = (args[0], [*_without_masks(args[1])], *args[2:])
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextlib.contextmanager
def conversions_of_fake_weights() -> Iterator[None]:
    """Lets modules of fake weights be converted, as by `to(torch.bfloat16)`.

    torch (2.13) swaps such weights, which its own weak references to them forbid.
    """
    swap: Any = torch.utils.swap_tensors

    def set_data(weight: torch.Tensor, converted: torch.Tensor) -> None:
        if isinstance(weight, FakeTensor):
            weight.data = converted.data
        else:
            swap(weight, converted)

    torch.utils.swap_tensors = set_data
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap


def _is_of_integers(func: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Tells if an operator reads real integers alone, or makes some of none."""
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if tensors:
        return all(map(_has_values, tensors))
    is_range = func.overloadpacket is torch.ops.aten.arange
    usual = torch.int64 if is_range and all(isinstance(arg, int) for arg in args) else None
    makes_integers = (kwargs.get("dtype") or usual) in (torch.int64, torch.int32, torch.bool)
    return makes_integers and kwargs.get("device", _CPU) == _CPU


def _without_masks(indices: Sequence[Any]) -> Iterator[Any]:
    """Yields the places of masks with values; the number of them would be unknown without."""
    for index in indices:
        is_mask = index is not None and index.dtype == torch.bool and _has_values(index)
        yield from index.nonzero().unbind(1) if is_mask else (index,)


def _has_values(tensor: torch.Tensor) -> bool:
    is_real = not isinstance(tensor, FakeTensor) and not tensor.is_meta
    return is_real and (not tensor.is_floating_point() or not tensor.dim())


# a loss for each sample, and what backward reads, for targets of mean length
@register_op_impl(torch.ops.aten._ctc_loss.Tensor)
def _ctc_loss(
    mode: FakeTensorMode, _: Any, log_probs: Any, targets: Any, *__: Any, **___: Any
) -> Any:
    frames, samples = log_probs.shape[:2]
    states = 2 * (targets.numel() // samples) + 1
    with mode:
        return log_probs.new_empty(samples), log_probs.new_empty(samples, frames, states)


@register_op_impl(torch.ops.aten._ctc_loss_backward.Tensor)
def _ctc_loss_backward(mode: FakeTensorMode, _: Any, __: Any, log_probs: Any, *___: Any) -> Any:
    with mode:
        return torch.empty_like(log_probs)


@register_op_impl(torch.ops.aten._grouped_mm.default)
def _grouped_mm(
    mode: FakeTensorMode,
    _: Any,
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    __: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Makes the result of a grouped product: one for each expert, or each has some rows of it."""
    if any(not _is_aligned(operand) for operand in (left, right)):
        raise RuntimeError("grouped products need rows of a multiple of 16 bytes")
    shape = [left.shape[-2], right.shape[-1]]
    if left.dim() == right.dim():
        stacks = left if offs is None or left.dim() > _MATRIX else offs
        shape.insert(0, stacks.shape[0])
    with mode:
        return left.new_empty(shape, dtype=out_dtype or left.dtype)


def _is_aligned(operand: torch.Tensor) -> bool:
    strides = [stride for stride in operand.stride()[-2:] if stride != 1]
    return all(stride * operand.element_size() % _ALIGNMENT_BYTES == 0 for stride in strides)


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
