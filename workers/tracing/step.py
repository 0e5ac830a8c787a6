"""Traces one forward and backward pass without memory, with the kernels of a device."""

import contextlib
import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from search_spaces.costs.footprint import QUANTIZED_BITS, Compute
from search_spaces.safety.files import packaged_table
from workers.models.built import BuiltModel
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.frozen_base import quantized_weights
from workers.models.user_code import errors_as
from workers.plain_torch.loss import loss_of
from workers.plain_torch.selective import saved_operators
from workers.tracing.recorder import EMBEDDING, HEAD, Log, Recorder

_AUTOCAST = packaged_table(__package__, "autocast.yaml")
IN_FP32 = frozenset(_AUTOCAST["in_fp32"])
TO_FP32 = frozenset(_AUTOCAST["to_fp32"])
TO_HALF = frozenset(_AUTOCAST["to_half"])
# autocast_mode.cpp: autocast on CPUs alone copies what these read to its widest type
_COPIED_ON_CPU = frozenset({"cat", "concat", "concatenate", "stack", "index_copy"})
_HALF_TYPES = (torch.bfloat16, torch.float16)
_KERNEL_DIMENSIONS = 4  # of attention kernels: samples, heads, tokens, head size
_HEAD_MULTIPLE = 8  # flash attention pads the head size to a multiple of it
_LARGEST_HEAD = 256  # for flash attention


class CudaEmulation(TorchFunctionMode):
    """Makes autocast, attention and dropout on CPU tensors behave as on CUDA."""

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "dropout":
            return _dropout(*args, **kwargs)
        if name == "scaled_dot_product_attention" and args and args[0].dim() == _KERNEL_DIMENSIONS:
            return _attention(*args, **kwargs)
        if not torch.is_autocast_enabled("cpu"):
            return func(*args, **kwargs)
        if name == "cross_entropy":
            return _cross_entropy(*args, **kwargs)
        if name in _COPIED_ON_CPU:
            with torch.autocast("cpu", enabled=False):
                return func(*args, **kwargs)
        if name in IN_FP32:
            args, kwargs = tree_map_only(torch.Tensor, _in_fp32, (args, kwargs))
        elif name in TO_HALF:
            args, kwargs = tree_map_only(torch.Tensor, _in_half, (args, kwargs))
        elif name in TO_FP32 and _is_half(args, kwargs):
            kwargs = {**kwargs, "dtype": torch.float32}
        return func(*args, **kwargs)


def _in_fp32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in _HALF_TYPES else tensor


def _in_half(tensor: torch.Tensor) -> torch.Tensor:
    is_wide = tensor.dtype == torch.float32
    return tensor.to(torch.get_autocast_dtype("cpu")) if is_wide else tensor


def _is_half(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    tensor = args[0] if args else kwargs.get("input")
    if kwargs.get("dtype") is not None or any(isinstance(arg, torch.dtype) for arg in args):
        return False
    return isinstance(tensor, torch.Tensor) and tensor.dtype in _HALF_TYPES


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Runs the kernel that torch dispatches to on CUDA: flash attention, else efficient."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(dtype) for tensor in (query, key, value))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(dtype)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    is_half, size = query.dtype in _HALF_TYPES, query.shape[-1]
    with torch.autocast("cpu", enabled=False):
        if attn_mask is None and is_half and size == value.shape[-1] <= _LARGEST_HEAD:
            padding = -size % _HEAD_MULTIPLE
            if padding:
                pad = torch.nn.functional.pad
                query, key, value = (pad(part, (0, padding)) for part in (query, key, value))
            padded: torch.Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
            return padded[..., :size]
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(groups, -3) for part in (key, value))
        bias = _bias(attn_mask, query, key)
        trains = any(part.requires_grad for part in (query, key, value))
        return torch.ops.aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, trains, dropout_p, is_causal, scale=scale
        )[0]


def _cross_entropy(
    input: torch.Tensor,  # noqa: A002 - torch's keyword
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = -100,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> torch.Tensor:
    """Takes logarithms in the type of the logits, and sums them in fp32.

    Source:
        cross_entropy_loss in torch's LossNLL.cpp: `log_softmax(self, class_dim, scalar_type)`. A
        call that sets a type keeps it; nll_loss is in AT_FORALL_FP32.
    """
    functional = torch.nn.functional
    is_plain = label_smoothing == 0.0 and size_average is None and reduce is None
    if target.is_floating_point() or not is_plain:
        return functional.cross_entropy(
            *(_in_fp32(input), target, weight, size_average, ignore_index, reduce),
            reduction=reduction,
            label_smoothing=label_smoothing,
        )
    with torch.autocast("cpu", enabled=False):
        logarithms = functional.log_softmax(input, min(1, input.dim() - 1), dtype=input.dtype)
        return functional.nll_loss(
            *(_in_fp32(logarithms), target, None if weight is None else _in_fp32(weight)),
            ignore_index=ignore_index,
            reduction=reduction,
        )


def _dropout(
    input: torch.Tensor,  # noqa: A002 - torch's keyword
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
) -> torch.Tensor:
    if not training or not 0 < p < 1 or inplace:
        return torch.dropout_(input, p, training) if inplace else torch.dropout(input, p, training)
    # as on CUDA, with a mask of one byte for each number
    return torch.ops.aten.native_dropout(input, p, True)[0]


def _bias(mask: torch.Tensor | None, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor | None:
    """Turns a mask into an additive bias, expanded to all heads and samples without copies."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        blocked = torch.zeros_like(mask, dtype=query.dtype)
        mask = blocked.masked_fill_(mask.logical_not(), -torch.inf)
    return mask.expand(*query.shape[:-1], key.shape[-2])


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """A weight: the number of its elements on this rank, and the parts that use it."""

    numbers: int
    trains: bool
    parts: tuple[int, ...]
    packed_bytes: float = 0.0  # with scales, if it is held quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Log of one pass, with the weights and their uses."""

    log: Log
    weights: tuple[WeightUse, ...]


class StepFailedError(Exception):
    """A pass failed in `operator`, or in the model's own code if it is None."""

    def __init__(self, operator: Any) -> None:
        super().__init__(str(operator))
        self.operator = operator


def trace_step(
    model: BuiltModel,
    present: tuple[int, ...],
    inputs: Mapping[str, Any],
    *,
    compute: Compute,
    device: str,
    mode: FakeMemory,
) -> TracedStep:
    """Runs forward and backward once through a model in fake memory, as on `device`.

    Args:
        model: In fake memory, as `in_fake_memory` makes it.
        present: Indices of the traced blocks.
        inputs: A batch.
        compute: Compute mode of the blocks.
        device: "cuda" or "cpu", whose kernels are emulated.
        mode: Of the model's tensors.

    Raises:
        StepFailedError: If the model fails; the error is its cause.
    """
    module = model.module
    recorder = Recorder(module, saved_operators())
    handles = [
        handle for index in present for handle in _follow(model.blocks[index], index, recorder)
    ]
    as_step_error = errors_as(lambda _: StepFailedError(recorder.running))
    try:
        with as_step_error, without_fake_tensor_logs(), mode, recorder, _without_collection():
            recorder.take_in(inputs)
            with emulated_device(device), torch.enable_grad():
                with autocast_as_on(device, enabled=compute == "autocast"):
                    loss = loss_of(module(**inputs))
                recorder.end_forward()
                loss.backward()
            recorder.end_backward(module)
    finally:
        for handle in handles:
            handle.remove()
    return TracedStep(log=recorder.log, weights=tuple(_weights(model, present, recorder.log)))


def _follow(block: nn.Module, index: int, recorder: Recorder) -> Iterator[Any]:
    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        recorder.enter(index, _hidden([*args, *kwargs.values()]))

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        recorder.leave(index, _hidden(output if isinstance(output, tuple | list) else [output]))

    # hooks that cut the sequence or cast run before `enter`; those that gather, after `leave`
    yield block.register_forward_pre_hook(enter, with_kwargs=True)
    yield block.register_forward_hook(leave, prepend=True)


def _hidden(values: Any) -> torch.Tensor | None:
    return next((v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()), None)


def _weights(model: BuiltModel, present: tuple[int, ...], log: Log) -> Iterator[WeightUse]:
    owners: dict[int, int] = {}
    for block in present:
        for weight in model.blocks[block].parameters():
            owners.setdefault(id(weight), block)
    quantized = quantized_weights(model.module)
    for index, weight in enumerate(model.module.parameters()):
        if id(weight) in owners:
            parts: tuple[int, ...] = (owners[id(weight)],)
        else:
            users = log.uses.get(index, {HEAD})
            parts = tuple(part for part in (EMBEDDING, HEAD) if part in users) or (EMBEDDING,)
        base = quantized.get(id(weight))
        yield WeightUse(
            numbers=weight.numel(),
            trains=weight.requires_grad,
            parts=parts,
            packed_bytes=weight.numel() * QUANTIZED_BITS[base] / 8 if base else 0.0,
        )


def emulated_device(device: str) -> contextlib.AbstractContextManager[object]:
    """Returns a context with the kernels and autocast of a device, for tensors on the CPU."""
    return CudaEmulation() if device == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def autocast_as_on(device: str, *, enabled: bool) -> Iterator[None]:
    """Casts to bf16 as on a device; models that ask whether CUDA does hear so too."""
    was_enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", enabled and device == "cuda")
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            yield
    finally:
        torch.set_autocast_enabled("cuda", was_enabled)
        torch.set_autocast_dtype("cuda", dtype)


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Disables garbage collection, which would free memory at arbitrary operators."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
