"""Machine conditions while steps are measured: the host by psutil, NVIDIA GPUs by NVML."""

import contextlib
import statistics
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Self

import psutil
import torch

from search_spaces.trial import Conditions
from workers.memory.nvml import NvmlDevice, memory_in_use, nvml_device

SAMPLE_SECONDS = 0.25

# Throttle reasons that distort a measurement. Idle and application clocks do not.
# Source: NVML API reference, nvmlClocksEventReasons.
_THROTTLES = {
    "power cap": "nvmlClocksEventReasonSwPowerCap",
    "hardware slowdown": "nvmlClocksThrottleReasonHwSlowdown",
    "software thermal": "nvmlClocksEventReasonSwThermalSlowdown",
    "hardware thermal": "nvmlClocksThrottleReasonHwThermalSlowdown",
    "power brake": "nvmlClocksThrottleReasonHwPowerBrakeSlowdown",
}


class ConditionsSampler:
    """Samples in its own thread, from `begin` to the end of the context.

    The thread starts with the context, before sampling: a thread takes memory, and sampling may
    begin while a memory limit is enforced.
    """

    def __init__(self, device: torch.device) -> None:
        self._samples = defaultdict[str, list[Any]](list)
        self._begun = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(device,), daemon=True)

    @classmethod
    @contextlib.contextmanager
    def running(cls, device: torch.device) -> Iterator[Self]:
        """Opens a sampler that is ready to begin until the context ends."""
        sampler = cls(device)
        sampler._thread.start()
        try:
            yield sampler
        finally:
            sampler._stopped.set()
            sampler._begun.set()
            sampler._thread.join()

    def begin(self) -> None:
        """Starts sampling."""
        self._begun.set()

    def read(self) -> Conditions:
        """Returns means over the samples so far, and the peak of device memory."""
        samples = self._samples
        return Conditions(
            host_cpu_percent=_mean(samples["host_cpu"]),
            host_memory_percent=_mean(samples["host_memory"]),
            device_utilisation_percent=_mean(samples["utilisation"]),
            device_power_watts=_mean(samples["watts"]),
            device_memory_bytes=max(samples["memory_bytes"], default=None),
            throttled=tuple(sorted(set().union(*samples["throttled"]))),
            device_clock_mhz=_mean(samples["clock_mhz"]),
        )

    def _run(self, device: torch.device) -> None:
        with nvml_device(device) as gpu:
            self._begun.wait()
            psutil.cpu_percent()  # the first call has nothing to compare with and returns 0
            while not self._stopped.wait(SAMPLE_SECONDS):
                self._samples["host_cpu"].append(psutil.cpu_percent())
                self._samples["host_memory"].append(psutil.virtual_memory().percent)
                if gpu is not None:
                    self._sample(gpu)

    def _sample(self, gpu: NvmlDevice) -> None:
        for name, query in _queries(gpu).items():
            with contextlib.suppress(gpu.library.NVMLError):
                self._samples[name].append(query())


def _queries(gpu: NvmlDevice) -> dict[str, Callable[[], Any]]:
    nvml, handle = gpu

    def throttled() -> set[str]:
        reasons = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        return {name for name, mask in _THROTTLES.items() if reasons & getattr(nvml, mask)}

    return {
        "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
        "watts": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        "clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM),
        "memory_bytes": lambda: memory_in_use(nvml, handle),
        "throttled": throttled,
    }


def _mean(values: list[float]) -> float | None:
    return statistics.fmean(values) if values else None
