"""Kernels by themselves: matmuls for seconds on end, and attention by backend, in bf16."""

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu.run import Run
from workers.memory.device_runtime import runtime_for
from workers.memory.nvml import nvml_device
from workers.probe.config import Shape
from workers.probe.rates import best_seconds

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
_HEADS = (64, 128)  # sizes
_TOKENS, _LENGTHS, _TINY_LENGTHS = 16384, (1024, 2048, 8192), (64,)
_WIDTH = 2048  # of all heads
_BURST_SECONDS = 0.1
_CALLS = 20  # between two looks at the clock


def measure(run: Run, shapes: Sequence[Shape]) -> None:
    """Measures all that has no result yet."""
    device = torch.device(run.device)
    for shape in shapes:
        item = "matmul " + " x ".join(map(str, shape))
        if not run.has(item):
            run.write(item, _matmul(shape, device, 0.05 if run.tiny else 3.0))
    lengths = _TINY_LENGTHS if run.tiny else _LENGTHS
    for backend, head, length in itertools.product(BACKENDS, _HEADS, lengths):
        item = f"attention {backend}, head {head}, {length} tokens"
        if not run.has(item):
            run.write(item, _attention(backend, head, length, device, run.tiny))


def _matmul(shape: Shape, device: torch.device, seconds: float) -> dict[str, Any]:
    """FLOP/s of the best of short bursts, and over seconds, with watts and clock at their end."""
    rows, columns, inner = shape
    left = torch.randn(rows, inner, device=device, dtype=torch.bfloat16)
    right = torch.randn(inner, columns, device=device, dtype=torch.bfloat16)
    target = torch.empty(rows, columns, device=device, dtype=torch.bfloat16)

    def multiply() -> None:
        torch.mm(left, right, out=target)

    flops = 2 * rows * columns * inner
    return {
        "burst_flops_per_second": flops / best_seconds(multiply, device, min(seconds, 0.2)),
        "sustained_flops_per_second": flops / sustained_seconds(multiply, device, seconds),
        **_power(device),
    }


def sustained_seconds(action: Callable[[], object], device: torch.device, seconds: float) -> float:
    """Returns seconds per call, the mean of all calls in the second half of the time."""
    runtime = runtime_for(device)
    for _ in range(2):
        runtime.synchronize()
        started, calls = time.perf_counter(), 0
        while time.perf_counter() - started < seconds / 2:
            for _ in range(_CALLS):
                action()
            calls += _CALLS
            runtime.synchronize()
        each = (time.perf_counter() - started) / calls
    return each


def _power(device: torch.device) -> dict[str, float | None]:
    with nvml_device(device) as gpu:
        if gpu is None:
            return {"watts": None, "clock_mhz": None}
        library, handle = gpu
        return {
            "watts": library.nvmlDeviceGetPowerUsage(handle) / 1000,
            "clock_mhz": library.nvmlDeviceGetClockInfo(handle, library.NVML_CLOCK_SM),
        }


def _attention(
    backend: str, head: int, length: int, device: torch.device, tiny: bool
) -> dict[str, Any]:
    """Seconds of causal attention, or why a backend has no kernel for it."""
    width, tokens = (2 * head, length) if tiny else (_WIDTH, _TOKENS)
    shape = (tokens // length, width // head, length, head)
    query, key, value = (
        torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    )

    def forward() -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    def both() -> None:
        torch.autograd.grad(forward().sum(), (query, key, value))

    try:
        with sdpa_kernel(BACKENDS[backend]):
            budget = 0.01 if tiny else _BURST_SECONDS
            seconds = [best_seconds(action, device, budget) for action in (forward, both)]
    except RuntimeError as error:  # no such kernel here, or no room for the scores
        return {"none": str(error).splitlines()[0]}
    return {"forward_seconds": seconds[0], "forward_and_backward_seconds": seconds[1]}
