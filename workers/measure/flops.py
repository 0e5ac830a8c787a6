"""Floating-point operations of a step, counted operator by operator."""

from __future__ import annotations

import contextlib
import functools
import time

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.errors import UserError
from search_spaces.hardware.catalogue import dense_peak_flops
from search_spaces.plan import Precision
from search_spaces.spec.schema import SweepSpec
from workers.data.batches import batch_source
from workers.engines.base import require_loss
from workers.models.experts import FLOP_FORMULAS, GroupedProducts
from workers.models.fake_memory import FakeMemory, without_fake_tensor_logs
from workers.models.load import build_fake
from workers.models.user_code import user_code_errors

BACKWARD_RATIO = 2  # a matmul's backward is two matmuls of its size
_PROBE_SIZE = 768
_PROBE_REPEATS = 5


def forward_flops_per_token(spec: SweepSpec) -> float | None:
    """Returns FLOPs of a forward pass per token, for a sample of mean length.

    Counted once per process on fake tensors, so that no trial pays time or memory for it. None
    for a model that cannot run on fake tensors, for example because it branches on their values.
    """
    return _flops_per_token(spec.model_dump_json(), backward=False)


def training_flops_per_token(spec: SweepSpec) -> float | None:
    """Returns FLOPs of forward and backward per token, for a sample of mean length.

    Recomputation does not count. Backward is twice forward, except with adapters, where it is
    counted: a frozen matmul has no weight gradient. None as in `forward_flops_per_token`.
    """
    if spec.train.method == "lora":
        return _flops_per_token(spec.model_dump_json(), backward=True)
    forward = forward_flops_per_token(spec)
    return forward and (1 + BACKWARD_RATIO) * forward


@functools.lru_cache(maxsize=8)
def _flops_per_token(spec_json: str, *, backward: bool) -> float | None:
    spec = SweepSpec.model_validate_json(spec_json)
    with contextlib.suppress(UserError), user_code_errors(spec.model.name):
        mode = FakeMemory()
        model = build_fake(spec.model, spec.train, attention="eager", mode=mode)
        with mode, GroupedProducts(), without_fake_tensor_logs():
            batch = batch_source(model, spec).typical()
            with (
                torch.set_grad_enabled(backward),
                FlopCounterMode(display=False, custom_mapping=FLOP_FORMULAS) as counter,
            ):
                output = model.module(**batch.inputs)
                if backward:
                    require_loss(output).backward()
        total_flops: int = counter.get_total_flops()
        return total_flops / batch.tokens
    return None


def peak_flops(
    device: torch.device, precision: Precision, group: dist.ProcessGroup | None
) -> float | None:
    """Returns the peak FLOP/s of one rank in dense matmuls; None if unknown.

    On CUDA it is the data sheet's figure. On a CPU it is measured, on all ranks at the same time
    because they share the machine.
    """
    if device.type == "cuda":
        return dense_peak_flops(torch.cuda.get_device_name(device), precision)
    if group is not None:
        dist.barrier(group=group)
    return _measured_cpu_peak(precision)


@functools.cache
def _measured_cpu_peak(precision: Precision) -> float:
    """FLOP/s of the fastest of several square matmuls."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    square = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    seconds = []
    for _ in range(_PROBE_REPEATS):
        started = time.perf_counter()
        torch.mm(square, square)
        seconds.append(time.perf_counter() - started)
    return 2 * _PROBE_SIZE**3 / min(seconds)
