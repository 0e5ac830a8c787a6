"""Environment of a rank: what decides the speed of a plan besides the device and the packages."""

import contextlib
import os
from collections.abc import Callable
from typing import Any

import torch

from search_spaces.hardware.properties import DeviceProperties
from workers.memory.nvml import nvml_device

# Settings of allocators, and what selects kernels
_VARIABLES = (
    *("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"),
    *("LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING"),
    "CUDA_DEVICE_MAX_CONNECTIONS",
)
_KILO = 1000  # CUDA reports clocks in kHz


def environment_of(device: torch.device, but: tuple[str, ...] = ()) -> tuple[tuple[str, str], ...]:
    """Returns driver, libraries, power limit, clocks and variables of a rank, sorted by name.

    Names with a unit end in it. A variable that is not set is empty; what is unknown is left out.
    NVML tells no locked clocks, only application clocks: what locked ones do is in
    `Conditions.device_clock_mhz`.

    Args:
        device: The rank's device.
        but: Variables to leave out, since a plan sets them.
    """
    facts = {name: os.environ.get(name, "") for name in _VARIABLES if name not in but}
    if device.type == "cuda":
        libraries = {"CUDA": torch.version.cuda, "cuDNN": torch.backends.cudnn.version()}
        facts |= {name: str(fact) for name, fact in libraries.items() if fact is not None}
        facts |= _driver_settings(device)
    return tuple(sorted(facts.items()))


def device_properties(device: torch.device) -> DeviceProperties | None:
    """Returns what CUDA reports of a GPU; None for a CPU, AMD, or a torch without clocks."""
    if device.type != "cuda" or torch.version.hip is not None:
        return None
    properties = torch.cuda.get_device_properties(device)
    if not hasattr(properties, "memory_clock_rate"):
        return None
    return DeviceProperties(
        compute_capability=(properties.major, properties.minor),
        multiprocessors=properties.multi_processor_count,
        clock_hertz=float(properties.clock_rate * _KILO),
        memory_clock_hertz=float(properties.memory_clock_rate * _KILO),
        memory_bus_bits=properties.memory_bus_width,
    )


def first_gpu() -> tuple[str, int, DeviceProperties | None] | None:
    """Returns name, bytes of memory and properties of torch's first GPU; None if it sees none."""
    if not torch.cuda.is_available():
        return None
    device = torch.device("cuda", 0)
    reported = torch.cuda.get_device_properties(device)
    return reported.name, reported.total_memory, device_properties(device)


def _driver_settings(device: torch.device) -> dict[str, str]:
    settings: dict[str, str] = {}
    with nvml_device(device) as gpu:
        if gpu is None:
            return settings
        library, handle = gpu.library, gpu.handle
        queries: dict[str, Callable[[], Any]] = {
            "driver": library.nvmlSystemGetDriverVersion,
            "power limit W": lambda: library.nvmlDeviceGetEnforcedPowerLimit(handle) // 1000,
            "application clock MHz": lambda: library.nvmlDeviceGetApplicationsClock(
                handle, library.NVML_CLOCK_SM
            ),
        }
        for name, query in queries.items():
            with contextlib.suppress(library.NVMLError):  # an instance of MIG has none of its own
                settings[name] = str(query())
    return settings
