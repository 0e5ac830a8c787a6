"""Device runtimes: memory statistics, a limit, events and waiting, of CPU, GPU and TPU.

Meters and stopwatches reach a device through this interface alone. What holds for every runtime is
in `tests/workers/memory/device_contract.py`, which a model of a device obeys too.
"""

import ctypes
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from search_spaces.errors import missing_extra


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemory:
    """Memory of a device at one moment, in bytes; peaks are those since the last reset.

    `reserved_bytes` is what this process holds to compute with: the caching allocator's, or all
    that is resident on a CPU. `claimed_bytes` is what the limit is compared with: on a CPU, address
    space, which need not be resident. `outside_bytes` is held by libraries, the context and other
    processes. `peak_allocated_bytes` is None if the allocator does not count.
    """

    reserved_bytes: int
    peak_reserved_bytes: int
    peak_allocated_bytes: int | None
    claimed_bytes: int
    outside_bytes: int
    allocator_retries: int


class AbstractDeviceRuntime(ABC):
    """Everything that a rank asks of its device besides computing.

    A device in error raises a RuntimeError from any of its methods.
    """

    clock: Callable[[], float] = time.perf_counter  # the host's, in seconds
    limits_allocations = True  # else only `Meter.check` finds what is above the limit

    @property
    @abstractmethod
    def counts_baseline(self) -> bool:
        """True if what is held before a trial takes from the trial's limit."""

    @property
    @abstractmethod
    def usable_bytes(self) -> int:
        """Bytes that a trial may use if it has no budget."""

    @abstractmethod
    def memory(self) -> DeviceMemory:
        """Returns the memory of this moment."""

    @abstractmethod
    def reset_peak(self) -> None:
        """Sets the peaks to what is held now."""

    @abstractmethod
    def limit(self, claimed_bytes: int | None) -> None:
        """Makes allocations fail that would claim more than these bytes; None lifts the limit.

        Does nothing without `limits_allocations`.
        """

    @abstractmethod
    def give_back(self) -> None:
        """Waits for the device, and returns memory that no tensor uses to it and to the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Waits until the device has finished all work."""

    @abstractmethod
    def record_event(self) -> Any:
        """Returns an event that the device passes after all work that it was given so far."""

    @abstractmethod
    def seconds_between(self, begin: Any, end: Any) -> float:
        """Returns the seconds between two events, which the device must have passed."""


_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_MACHINE_SHARE = 0.9  # of the free memory if there is no budget; the rest is for the system


class CpuRuntime(AbstractDeviceRuntime):
    """The CPU, which computes while Python waits, and whose memory the kernel counts."""

    counts_baseline = False

    def __init__(
        self, local_world_size: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """Prepares a runtime; it holds nothing.

        Args:
            local_world_size: Ranks on this machine, which share its free memory.
            clock: Returns the time in seconds.
        """
        self._local_world_size = local_world_size
        self.clock = clock

    @property
    def usable_bytes(self) -> int:
        available = psutil.virtual_memory().available
        return int(available * _MACHINE_SHARE / self._local_world_size)

    def memory(self) -> DeviceMemory:
        status = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        resident, peak, data = (
            int(status[field].split()[0]) * 1024  # the file has KiB
            for field in ("VmRSS", "VmHWM", "VmData")
        )
        return DeviceMemory(
            reserved_bytes=resident,
            peak_reserved_bytes=peak,
            peak_allocated_bytes=None,
            claimed_bytes=data,
            outside_bytes=0,
            allocator_retries=0,
        )

    def reset_peak(self) -> None:
        _CLEAR_REFS.write_text(_RESET_PEAK)

    def limit(self, claimed_bytes: int | None) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = hard if claimed_bytes is None else claimed_bytes
        if hard != resource.RLIM_INFINITY:
            soft = min(soft, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    def give_back(self) -> None:
        ctypes.CDLL(None).malloc_trim(0)

    def synchronize(self) -> None:
        pass

    def record_event(self) -> float:
        return self.clock()

    def seconds_between(self, begin: float, end: float) -> float:
        return end - begin


# What a device keeps free of torch's allocator: NCCL, cuBLAS, Triton and kernels that are loaded
# when they are first used allocate for themselves, and fail where nothing is left
_RESERVE_BYTES, _RESERVE_SHARE = 256 * 2**20, 0.01
_LIMIT = "set_per_process_memory_fraction"


class AcceleratorRuntime(AbstractDeviceRuntime):
    """A GPU or TPU, which computes asynchronously, behind its allocator in torch.

    All is asked of `torch.accelerator`, but for events with times and the limit, which only the
    module of a type of device has: `torch.cuda`, also for ROCm, or `torch.tpu`, which has no limit.

    Source:
        torch_tpu 0.2.0: _internal/device/_device_module.py, _internal/stream/streams.py.
    """

    counts_baseline = True

    def __init__(self, device: torch.device) -> None:
        """Prepares a runtime; it holds nothing.

        Args:
            device: A device with an index, the current one.
        """
        self._device, self._module = device, torch.get_device_module(device)
        self.limits_allocations = hasattr(self._module, _LIMIT)

    @property
    def usable_bytes(self) -> int:
        total = self._total_bytes()
        return total - max(_RESERVE_BYTES, int(_RESERVE_SHARE * total))

    def memory(self) -> DeviceMemory:
        # without entries before the allocator's first use
        statistics = torch.accelerator.memory_stats(self._device)
        free, total = torch.accelerator.get_memory_info(self._device)

        def counted(name: str) -> int:
            return int(statistics.get(name, 0))

        # an allocator without a cache may count no reserved bytes
        reserved, peak = (
            max(counted(f"{kind}_bytes.all.{moment}") for kind in ("reserved", "allocated"))
            for moment in ("current", "peak")
        )
        return DeviceMemory(
            reserved_bytes=reserved,
            peak_reserved_bytes=peak,
            peak_allocated_bytes=counted("allocated_bytes.all.peak"),
            claimed_bytes=reserved,
            outside_bytes=max(total - free - reserved, 0),
            allocator_retries=counted("num_alloc_retries"),
        )

    def reset_peak(self) -> None:
        if torch.accelerator.memory_stats(self._device):  # else torch 2.11 raises an error
            torch.accelerator.reset_peak_memory_stats(self._device)

    def limit(self, claimed_bytes: int | None) -> None:
        share = 1.0 if claimed_bytes is None else min(claimed_bytes / self._total_bytes(), 1.0)
        if self.limits_allocations:
            getattr(self._module, _LIMIT)(share, self._device)

    def give_back(self) -> None:
        self.synchronize()  # pinned memory is free when the copies that use it are done
        torch.accelerator.empty_cache()
        # pinned memory is kept without a limit; torch has the public name since 2.13
        (getattr(torch.accelerator, "empty_host_cache", None) or torch._C._host_emptyCache)()

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self._device)

    def record_event(self) -> torch.Event:
        event: torch.Event = self._module.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, begin: torch.Event, end: torch.Event) -> float:
        return float(begin.elapsed_time(end)) / 1000

    def _total_bytes(self) -> int:
        _, total = torch.accelerator.get_memory_info(self._device)
        return total


def runtime_for(device: torch.device, local_world_size: int = 1) -> AbstractDeviceRuntime:
    """Returns the runtime of a device.

    Args:
        device: The CPU, or another device with an index.
        local_world_size: Ranks on this machine.
    """
    return CpuRuntime(local_world_size) if device.type == "cpu" else AcceleratorRuntime(device)


def missing_tpu() -> str | None:
    """Returns the reason why torch sees no TPU, with the way on; None if it sees one."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is not None and accelerator.type == "tpu":
        return None
    return missing_extra("torch_tpu") or (
        "torch_tpu sees no TPU on this machine: run on a TPU VM, or set cluster.device to cpu"
    )
