"""NVIDIA's management library (NVML), opened for the duration of a context.

It reports what CUDA does not: memory in use by all processes, power, utilisation and clocks. No
other module opens it. Importing this module does not import torch, since processes without torch
use it too.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

if TYPE_CHECKING:
    import torch


class NvmlDevice(NamedTuple):
    """One GPU: the library, and its handle of the device."""

    library: Any
    handle: Any


@contextlib.contextmanager
def nvml() -> Iterator[Any | None]:
    """Yields the initialised library; None on a machine without NVIDIA's driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no GPU
        yield None
        return
    try:
        yield pynvml
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # a driver that died meanwhile
            pynvml.nvmlShutdown()


@contextlib.contextmanager
def nvml_device(device: torch.device) -> Iterator[NvmlDevice | None]:
    """Yields the GPU of a torch device; None for a CPU, for AMD, or if NVML does not know it.

    CUDA and NVML number devices differently, and `CUDA_VISIBLE_DEVICES` hides some. The UUID is
    the same for both.
    """
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        yield None
        return
    with nvml() as library:
        yield None if library is None else _find(library, device)


def joules_used(device: torch.device) -> float:
    """Returns the joules that a GPU used since its driver was loaded; NaN if nothing counts them.

    Source:
        NVML API reference, nvmlDeviceGetTotalEnergyConsumption: since Volta, in millijoules.
    """
    with nvml_device(device) as gpu, contextlib.suppress(pynvml.NVMLError):
        if gpu is not None:
            return float(gpu.library.nvmlDeviceGetTotalEnergyConsumption(gpu.handle)) / 1000
    return math.nan


def missing_for_energy(device: torch.device) -> str | None:
    """Returns the reason why a device's energy cannot be measured, None if it can."""
    lack = "it needs the energy counter of an NVIDIA GPU since Volta, whole (MIG has none)"
    return lack if math.isnan(joules_used(device)) else None


def memory_in_use(library: Any, handle: Any) -> int:
    """Returns the bytes that processes and the driver's contexts hold on a GPU.

    The first form of this query adds what the driver reserves for itself, hundreds of MiB which
    `cudaMemGetInfo` does not count either; drivers before 510, and WSL, have no other.
    """
    try:
        return int(library.nvmlDeviceGetMemoryInfo(handle, version=library.nvmlMemory_v2).used)
    except library.NVMLError:
        return int(library.nvmlDeviceGetMemoryInfo(handle).used)


def _find(library: Any, device: torch.device) -> NvmlDevice | None:
    import torch

    uuid = torch.cuda.get_device_properties(device).uuid
    for kind in ("GPU", "MIG"):  # a whole GPU, or an instance of one; torch leaves this part out
        with contextlib.suppress(library.NVMLError):
            return NvmlDevice(library, library.nvmlDeviceGetHandleByUUID(f"{kind}-{uuid}"))
    return None
