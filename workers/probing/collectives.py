"""What collectives between the local ranks take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from search_spaces.hardware.device import Collective, CollectivePoint
from workers.probing.effort import Effort

_REPEATS = 5


def collective_points(effort: Effort, device: torch.device) -> tuple[CollectivePoint, ...]:
    """Seconds of each collective at each size, the fastest of some repeats; none for one rank.

    All ranks of the default process group have to call it. The size is that of the whole tensor:
    what is reduced, what is gathered, what is scattered.
    """
    ranks = effort.ranks
    if ranks == 1:
        return ()
    found: list[CollectivePoint] = []
    for size in effort.collective_bytes:
        for name, action in _actions(size // 4 // ranks, ranks, device):
            found.append((name, ranks, size // 4 // ranks * ranks * 4, _best(action, device)))
    return tuple(found)


def bus_bandwidth(points: tuple[CollectivePoint, ...]) -> float | None:
    """Bytes each second that a rank sends and receives in the largest all-reduce.

    Source: nccl-tests, doc/PERFORMANCE.md: algorithm bandwidth times 2 (n - 1) / n.
    """
    reduced = [point for point in points if point[0] == "all_reduce"]
    if not reduced:
        return None
    _, ranks, size, seconds = max(reduced, key=lambda point: point[2])
    return 2 * (ranks - 1) / ranks * size / seconds


def _actions(
    elements: int, ranks: int, device: torch.device
) -> tuple[tuple[Collective, Callable[[], object]], ...]:
    whole = torch.zeros(elements * ranks, device=device)
    part = torch.zeros(elements, device=device)
    # torch renamed two of them, and warns where they are called as before
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return (
        ("all_reduce", lambda: dist.all_reduce(whole)),
        ("all_gather", lambda: gather(whole, part)),
        ("reduce_scatter", lambda: scatter(part, whole)),
    )


def _best(action: Callable[[], object], device: torch.device) -> float:
    best = math.inf
    for repeat in range(_REPEATS + 1):
        dist.barrier()
        _synchronize(device)
        started = time.perf_counter()
        action()
        _synchronize(device)
        if repeat:  # the first opens connections
            best = min(best, time.perf_counter() - started)
    return best


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
