"""How many floating-point operations a step takes, counted and not derived from a formula."""

from __future__ import annotations

import functools
import time

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode

from search_spaces.hardware import dense_peak_flops
from search_spaces.plan import Precision

BACKWARD_RATIO = 2  # a matmul's backward is two matmuls of its size
_PROBE_SIZE = 768
_PROBE_REPEATS = 5


def counter() -> FlopCounterMode:
    """A context in which matrix multiplications, convolutions and attention are counted."""
    return FlopCounterMode(display=False)


def peak_flops(
    device: torch.device, precision: Precision, group: dist.ProcessGroup | None
) -> float | None:
    """FLOP/s that one rank could reach in dense matmuls; None if nobody knows.

    On CUDA the data sheet's figure; on CPU measured, all ranks at the same time since they share
    the machine.
    """
    if device.type == "cuda":
        return dense_peak_flops(torch.cuda.get_device_name(device), precision)
    if group is not None:
        dist.barrier(group=group)
    return _measured_cpu_peak(precision, torch.get_num_threads())


@functools.cache
def _measured_cpu_peak(precision: Precision, threads: int) -> float:
    """The fastest of some square matmuls with this many threads, in FLOP/s."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left = torch.ones(_PROBE_SIZE, _PROBE_SIZE, dtype=dtype)
    seconds = []
    for _ in range(_PROBE_REPEATS):
        started = time.perf_counter()
        torch.mm(left, left)
        seconds.append(time.perf_counter() - started)
    return 2 * _PROBE_SIZE**3 / min(seconds)
