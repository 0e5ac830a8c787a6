"""One forward and backward pass without memory, written down."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from search_spaces.footprint import Compute
from workers.engines.loss import loss_of
from workers.models.built import BuiltModel
from workers.models.experts import quiet_fakes
from workers.models.user_code import any_fault_as
from workers.parallel.save_list import kept_operators
from workers.tracing.emulation import AsOnCuda
from workers.tracing.recorder import EMBEDDING, HEAD, Log, Recorder


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightUse:
    """A weight: how many numbers this rank holds of it, and the parts that use it."""

    numbers: int
    trains: bool
    parts: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Traced:
    """What one pass showed."""

    log: Log
    weights: tuple[WeightUse, ...]


class StepFailedError(Exception):
    """A pass ended early; `operator` was under way, None if it was the model's own code."""

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
    mode: FakeTensorMode,
) -> Traced:
    """Goes forward and backward once through a model in fake memory, as on `device`.

    Raises:
        StepFailedError: If the model cannot; what was raised is its cause.
    """
    module = model.module
    recorder = Recorder(module, kept_operators())
    handles = [
        handle for place in present for handle in _follow(model.blocks[place], place, recorder)
    ]
    failed = any_fault_as(lambda _: StepFailedError(recorder.running))
    try:
        with failed, quiet_fakes(), mode, recorder, _without_collection():
            recorder.take_in(inputs)
            with as_on(device), torch.enable_grad():
                with torch.autocast("cpu", torch.bfloat16, enabled=compute == "autocast"):
                    loss = loss_of(module(**inputs))
                recorder.end_forward()
                loss.backward()
            recorder.end_backward(module)
    finally:
        for handle in handles:
            handle.remove()
    return Traced(log=recorder.log, weights=tuple(_weights(model, present, recorder.log)))


def _follow(block: nn.Module, place: int, recorder: Recorder) -> Iterator[Any]:
    def enter(_: nn.Module, args: Any, kwargs: Any) -> None:
        recorder.enter(place, _hidden([*args, *kwargs.values()]))

    def leave(_: nn.Module, __: Any, output: Any) -> None:
        recorder.leave(place, _hidden(output if isinstance(output, tuple | list) else [output]))

    # what cuts the sequence or casts comes before a block, what gathers it behind
    yield block.register_forward_pre_hook(enter, with_kwargs=True)
    yield block.register_forward_hook(leave, prepend=True)


def _hidden(values: Any) -> torch.Tensor | None:
    return next((v for v in values if isinstance(v, torch.Tensor) and v.is_floating_point()), None)


def _weights(model: BuiltModel, present: tuple[int, ...], log: Log) -> Iterator[WeightUse]:
    homes: dict[int, int] = {}
    for place in present:
        for weight in model.blocks[place].parameters():
            homes.setdefault(id(weight), place)
    for index, weight in enumerate(model.module.parameters()):
        if id(weight) in homes:
            parts: tuple[int, ...] = (homes[id(weight)],)
        else:
            used = log.uses.get(index, {HEAD})
            parts = tuple(part for part in (EMBEDDING, HEAD) if part in used) or (EMBEDDING,)
        yield WeightUse(numbers=weight.numel(), trains=weight.requires_grad, parts=parts)


def as_on(device: str) -> contextlib.AbstractContextManager[object]:
    """The kernels and the autocast of a device, for tensors that say they lie on the CPU."""
    return AsOnCuda() if device == "cuda" else contextlib.nullcontext()


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Cycles are not collected meanwhile, which would free memory at places of chance."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
