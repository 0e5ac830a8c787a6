"""Threads of a rank on the host: as many as it is given, or a share of the node's cores."""

import contextlib
import os
from pathlib import Path

import torch

from workers.memory.nvml import nvml


def host_threads(device: torch.device, cpus_per_worker: int) -> int:
    """Returns the threads of a rank on the host.

    On a GPU they update offloaded optimizer states, and a rank that Ray gave one core has its
    share of those of the node: the cores by the GPUs.
    """
    if device.type == "cpu":
        return cpus_per_worker
    return max(cpus_per_worker, usable_cores() // gpus_of_node())


def usable_cores(quota: Path = Path("/sys/fs/cgroup/cpu.max")) -> int:
    """Returns the cores that this process may use, by its affinity and its container's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        limit, period = quota.read_text().split()
    except (OSError, ValueError):
        limit, period = "max", "1"
    allowed = int(limit) // int(period) if limit.isdigit() else cores
    return max(min(cores or 1, allowed or 1), 1)


def gpus_of_node() -> int:
    """Returns the GPUs of this node, also those that are hidden from this process; at least 1."""
    with nvml() as library:
        if library is not None:
            with contextlib.suppress(library.NVMLError):
                return max(int(library.nvmlDeviceGetCount()), 1)
    return max(torch.accelerator.device_count(), 1)


def use_threads(threads: int) -> None:
    """Computes with so many threads from now on.

    torch is told by itself. Extensions, such as DeepSpeed's Adam, bring another OpenMP, which reads
    the environment when it is loaded; Ray sets the variable to an actor's cores.
    """
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
