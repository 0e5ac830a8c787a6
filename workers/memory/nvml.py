"""NVIDIA's management library (NVML), opened for the length of a block.

It tells of GPUs what CUDA does not: memory in use by whomever, power, utilisation, clocks. Nothing
else opens it. Importing this module imports no torch: processes that hold none ask too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

if TYPE_CHECKING:
    import torch


class NvmlDevice(NamedTuple):
    """One GPU: the library to ask, and what it calls the device."""

    library: Any
    handle: Any


@contextlib.contextmanager
def nvml() -> Iterator[Any | None]:
    """The library, initialised; None on a machine without NVIDIA's driver."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:  # no driver, no GPU
        yield None
        return
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextlib.contextmanager
def nvml_device(device: torch.device) -> Iterator[NvmlDevice | None]:
    """The GPU that torch calls `device`; None of a CPU, of AMD, and where NVML does not know it.

    CUDA and NVML number devices differently, and `CUDA_VISIBLE_DEVICES` hides some: the UUID is
    the same for both.
    """
    import torch

    if device.type != "cuda" or torch.version.hip is not None:
        yield None
        return
    with nvml() as library:
        yield None if library is None else _known(library, device)


def _known(library: Any, device: torch.device) -> NvmlDevice | None:
    import torch

    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    try:
        return NvmlDevice(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None
