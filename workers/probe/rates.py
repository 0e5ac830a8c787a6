"""Rates of a device: matmuls, copies, launches, collectives, Adam on the host, and its drive."""

import contextlib
import math
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from search_spaces.hardware.device import Collective, CollectivePoint, MatmulPoint, MatmulPrecision
from workers.memory.device_runtime import runtime_for
from workers.probe.config import ProbeConfig, Shape

_MIN_SECONDS = 1e-3  # shorter repeats are timed together, so that the clock costs little
_BATCH_SECONDS = 0.05  # of calls between two readings of the clock: no gap to cool down in
_RAMP = 4  # the time before the clock starts, as a part of the budget
_LAUNCHES = 2000

_DTYPES: dict[MatmulPrecision, torch.dtype] = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
_REPEATS = 5


def best_seconds(
    action: Callable[[], object],
    device: torch.device,
    budget_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns seconds per call, from the fastest repeat within the budget.

    The first call does not count: it loads libraries.
    """
    action()
    best = spent = _seconds_of(action, device, clock, calls=1)
    calls = max(math.ceil(_MIN_SECONDS / max(best, 1e-9)), 1)
    while spent < budget_seconds:
        seconds = _seconds_of(action, device, clock, calls=calls)
        best, spent = min(best, seconds / calls), spent + seconds
    return best


def sustained_seconds(
    action: Callable[[], object],
    device: torch.device,
    budget_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Returns seconds per call, the mean over the budget under continuous load.

    Before it, the load lasts for a quarter of the budget, in which clocks settle: a cool device
    runs faster than training will.
    """
    action()
    once = _seconds_of(action, device, clock, calls=1)
    batch = min(_BATCH_SECONDS, budget_seconds / _RAMP)
    calls = max(math.ceil(batch / max(once, 1e-9)), 1)
    for seconds in (budget_seconds / _RAMP, budget_seconds):
        spent, batches = 0.0, 0
        while not batches or spent < seconds:
            spent, batches = spent + _seconds_of(action, device, clock, calls=calls), batches + 1
    return spent / (batches * calls)


def matmul_points(config: ProbeConfig, device: torch.device) -> tuple[MatmulPoint, ...]:
    """Returns sustained FLOP/s of each shape in each precision of the device, on random values.

    Source: matmuls of zeros draw less power and run faster than real ones (H. He,
    "Strangely, matrix multiplications on GPUs run faster when given predictable data", 2024).
    """
    return tuple(
        point
        for precision in config.precisions
        if _has(precision, device)
        for point in _points_of(precision, config, device)
    )


def copy_bandwidth(config: ProbeConfig, device: torch.device) -> float:
    """Returns bytes read plus written per second while a large tensor is copied on a device."""
    source = torch.ones(config.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    seconds = best_seconds(lambda: target.copy_(source), device, config.point_seconds)
    return 2 * source.nbytes / seconds


def transfer_rates(
    config: ProbeConfig, device: torch.device, *, pinned: bool
) -> tuple[float, float]:
    """Returns bytes per second from host to device, and back."""
    host = torch.ones(config.copy_bytes // 4, pin_memory=pinned)
    on_device = torch.empty_like(host, device=device)
    up, down = (
        best_seconds(
            partial(target.copy_, source, non_blocking=pinned), device, config.point_seconds
        )
        for target, source in ((on_device, host), (host, on_device))
    )
    return host.nbytes / up, host.nbytes / down


def launch_seconds(config: ProbeConfig, device: torch.device) -> float:
    """Returns seconds per operator in eager PyTorch, for operators with almost no work."""
    number = torch.zeros(1, device=device)

    def many() -> None:
        for _ in range(_LAUNCHES):
            number.add_(1.0)

    return best_seconds(many, device, config.point_seconds) / _LAUNCHES


def _points_of(
    precision: MatmulPrecision, config: ProbeConfig, device: torch.device
) -> Iterator[MatmulPoint]:
    dtype = _DTYPES[precision]
    with _tf32(precision == "tf32"):
        for rows, columns, inner in sorted(config.shapes, key=math.prod):
            try:
                seconds = _matmul_seconds((rows, columns, inner), dtype, config, device)
            except torch.OutOfMemoryError:  # a shape that this device has no room for
                continue
            yield precision, rows, columns, inner, 2 * rows * columns * inner / seconds
            if seconds > config.matmul_seconds:  # larger shapes would take minutes
                return


def _matmul_seconds(
    shape: Shape, dtype: torch.dtype, config: ProbeConfig, device: torch.device
) -> float:
    # a function of its own, so that its tensors are gone when the next, larger shape is made
    rows, columns, inner = shape
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    right = torch.randn(inner, columns, device=device, dtype=dtype)
    target = torch.empty(rows, columns, device=device, dtype=dtype)
    return sustained_seconds(
        lambda: torch.mm(left, right, out=target), device, config.matmul_seconds
    )


def _has(precision: MatmulPrecision, device: torch.device) -> bool:
    if device.type != "cuda":
        return precision != "tf32"
    capability = torch.cuda.get_device_capability(device)
    if precision == "tf32":
        return capability >= (8, 0) and torch.version.hip is None
    if precision == "bf16":  # older ones emulate it
        return capability >= (8, 0) or torch.version.hip is not None
    return precision in _DTYPES


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _seconds_of(
    action: Callable[[], object], device: torch.device, clock: Callable[[], float], *, calls: int
) -> float:
    runtime = runtime_for(device)
    runtime.synchronize()
    started = clock()
    for _ in range(calls):
        action()
    runtime.synchronize()
    return clock() - started


def collective_points(config: ProbeConfig, device: torch.device) -> tuple[CollectivePoint, ...]:
    """Returns seconds of each collective at each size, the fastest of several repeats.

    All ranks of the default process group call it together; a single rank has no points. The size
    is that of the whole tensor: reduced, gathered or scattered.
    """
    ranks = config.ranks
    if ranks == 1:
        return ()
    points: list[CollectivePoint] = []
    for size in config.collective_bytes:
        for name, action in _actions(size // 4 // ranks, ranks, device):
            points.append((name, ranks, size // 4 // ranks * ranks * 4, _best(action, device)))
    return tuple(points)


def bus_bandwidth(points: tuple[CollectivePoint, ...]) -> float | None:
    """Returns the bus bandwidth of the largest all-reduce in bytes per second; None without one.

    Source: nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth times 2 (n - 1) / n.
    """
    all_reduces = [point for point in points if point[0] == "all_reduce"]
    if not all_reduces:
        return None
    _, ranks, size, seconds = max(all_reduces, key=lambda point: point[2])
    return 2 * (ranks - 1) / ranks * size / seconds


def _actions(
    elements: int, ranks: int, device: torch.device
) -> tuple[tuple[Collective, Callable[[], object]], ...]:
    whole = torch.zeros(elements * ranks, device=device)
    part = torch.zeros(elements, device=device)
    # torch 2.13 renamed both, and warns when the old names are called
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return (
        ("all_reduce", lambda: dist.all_reduce(whole)),
        ("all_gather", lambda: gather(whole, part)),
        ("reduce_scatter", lambda: scatter(part, whole)),
    )


def _best(action: Callable[[], object], device: torch.device) -> float:
    seconds = []
    for _ in range(_REPEATS + 1):
        dist.barrier()
        seconds.append(_seconds_of(action, device, time.perf_counter, calls=1))
    return min(seconds[1:])  # the first opens connections


CHUNK_BYTES = 2**23


def drive_rates(
    folder: Path,
    *,
    file_bytes: int,
    most_seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, float] | None:
    """Writes a file to a folder around the page cache, reads it back and deletes it.

    Args:
        folder: An existing folder on the drive.
        file_bytes: Size of the file, rounded down to whole chunks, at least one.
        most_seconds: Time limit for writing, and again for reading.
        clock: Returns the time in seconds.

    Returns:
        Bytes per second of writing and of reading; None without direct I/O, as in memory (tmpfs).

    Raises:
        OSError: If the folder is not writable or has no space.
    """
    chunks = max(file_bytes // CHUNK_BYTES, 1)
    with (
        tempfile.TemporaryDirectory(prefix="plimsoll-probe-", dir=folder) as inside,
        mmap.mmap(-1, CHUNK_BYTES) as chunk,  # direct I/O needs page-aligned memory
        contextlib.ExitStack() as stack,
    ):
        chunk.write(os.urandom(CHUNK_BYTES))  # which the drive cannot compress
        try:
            file = os.open(Path(inside) / "file", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
        except OSError:
            return None
        stack.callback(os.close, file)
        write, written = _rate(lambda: os.write(file, chunk), chunks, most_seconds, clock)
        os.lseek(file, 0, os.SEEK_SET)
        read, _ = _rate(lambda: os.readv(file, [chunk]), written, most_seconds, clock)
    return write, read


def _rate(
    move: Callable[[], int], chunks: int, most_seconds: float, clock: Callable[[], float]
) -> tuple[float, int]:
    """Returns bytes per second, and the number of chunks that were moved."""
    started, moved, done = clock(), 0, 0
    while done < chunks and clock() - started < most_seconds:
        moved += move()
        done += 1
    return moved / (clock() - started), done
