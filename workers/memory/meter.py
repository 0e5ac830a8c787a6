"""Memory meters of CPU and CUDA: limit, peak and residual of a trial on one rank."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

NEARLY_FULL = 0.8  # share of the limit above which a vague error counts as out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPeak:
    """Peak memory since the last reset, in bytes.

    `held_bytes` counts against the limit. `allocated_bytes` is None if the allocator does not
    count. `outside_bytes` is memory outside the allocator.
    """

    held_bytes: int
    reserved_bytes: int
    allocated_bytes: int | None
    outside_bytes: int


class OverLimit(MemoryError):
    """Raised after a trial held more memory than the limit."""

    def __init__(self, wanted_bytes: int, limit_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        super().__init__(f"held {wanted_bytes} bytes, but the limit is {limit_bytes}")


class AbstractMeter(ABC):
    """Meters the memory of one rank on one kind of device.

    A trial calls `open`, then `enforced` around its steps once the model is built, inside it
    `check` and `peak`, and always `close` at the end.
    """

    @abstractmethod
    def open(self) -> None:
        """Takes the baseline of a trial."""

    @property
    @abstractmethod
    def limit_bytes(self) -> int:
        """Memory limit of a trial, in bytes."""

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Resets the peak and enforces the limit inside the context.

        The limit is lifted before an error is handled, because that takes memory too.
        """
        self._enforce()
        try:
            yield
        finally:
            self._lift()

    @abstractmethod
    def _enforce(self) -> None: ...

    @abstractmethod
    def _lift(self) -> None: ...

    @abstractmethod
    def bytes_in_use(self) -> int:
        """Returns the bytes held now that count against the limit."""

    def nearly_full(self) -> bool:
        """Returns True if an error without a clear reason may be out of memory."""
        return self.bytes_in_use() > NEARLY_FULL * self.limit_bytes

    @abstractmethod
    def peak(self) -> MemoryPeak:
        """Returns the peak since `enforced` was entered."""

    def allocator_retries(self) -> int:
        """Returns how often the allocator has given its cache back and tried again, so far."""
        return 0

    def check(self) -> None:
        """Checks the peak against the limit, for memory that the allocator did not refuse.

        Raises:
            OverLimit: If the peak is above the limit.
        """
        wanted_bytes = self.peak().held_bytes
        if wanted_bytes > self.limit_bytes:
            raise OverLimit(wanted_bytes, self.limit_bytes)

    @abstractmethod
    def close(self) -> int:
        """Releases free memory; returns the residual since `open`, in bytes."""


_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_MACHINE_SHARE = 0.9  # of the free memory if there is no budget; the rest is for the system


class CpuMeter(AbstractMeter):
    """Meters resident memory above the worker's baseline, under a budget."""

    def __init__(self, budget_bytes: int | None, local_world_size: int) -> None:
        """Sets the limit and takes the baseline.

        Args:
            budget_bytes: Bytes that a trial may use; None for an equal share of the free memory.
            local_world_size: Ranks on this machine.
        """
        free = int(psutil.virtual_memory().available * _MACHINE_SHARE / local_world_size)
        self._budget_bytes = min(budget_bytes, free) if budget_bytes else free
        gc.collect()
        self.open()

    def open(self) -> None:
        _trim()  # freed memory must not count in the baseline
        self._baseline_data_bytes = _status("VmData")
        self._baseline_resident_bytes = _status("VmRSS")

    @property
    def limit_bytes(self) -> int:
        return self._budget_bytes

    def _enforce(self) -> None:
        _release_host()
        _CLEAR_REFS.write_text(_RESET_PEAK)
        _set_soft_limit(self._baseline_data_bytes + self._budget_bytes)

    def _lift(self) -> None:
        _set_soft_limit(None)

    def bytes_in_use(self) -> int:
        return max(_status("VmRSS") - self._baseline_resident_bytes, 0)

    def nearly_full(self) -> bool:
        # an allocation fails at the limit of address space, which need not be resident
        used = _status("VmData") - self._baseline_data_bytes
        return used > NEARLY_FULL * self.limit_bytes or super().nearly_full()

    def peak(self) -> MemoryPeak:
        resident = max(_status("VmHWM") - self._baseline_resident_bytes, 0)
        return MemoryPeak(
            held_bytes=resident,
            reserved_bytes=resident,
            allocated_bytes=None,
            outside_bytes=self._baseline_resident_bytes,
        )

    def close(self) -> int:
        _release_host()
        return max(_status("VmRSS") - self._baseline_resident_bytes, 0)


def _set_soft_limit(limit_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _status(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024  # the file has KiB
    raise OSError(f"/proc/self/status has no {field}")


def _release_host() -> None:
    gc.collect()
    _trim()


def _trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)


# What a device keeps free of torch's allocator: NCCL, cuBLAS, Triton and kernels that are loaded
# when they are first used allocate for themselves, and fail where nothing is left
_RESERVE_BYTES, _RESERVE_SHARE = 256 * 2**20, 0.01


class CudaMeter(AbstractMeter):
    """Meters reserved memory plus context and communication buffers on one CUDA device."""

    def __init__(self, budget_bytes: int | None, device: torch.device) -> None:
        """Sets the limit.

        Args:
            budget_bytes: Bytes of the device that this rank may use; None for all but a reserve
                for libraries.
            device: A CUDA device with an index.
        """
        self._device = device
        _, total = torch.cuda.mem_get_info(device)
        self._total_bytes = total
        usable = total - max(_RESERVE_BYTES, int(_RESERVE_SHARE * total))
        self._budget_bytes = min(budget_bytes or usable, usable)
        self._baseline_bytes = 0
        self._outside_bytes = 0

    def open(self) -> None:
        self._baseline_bytes = self.bytes_in_use()

    @property
    def limit_bytes(self) -> int:
        return self._budget_bytes

    def _enforce(self) -> None:
        torch.cuda.synchronize(self._device)
        _release_cuda()
        torch.cuda.reset_peak_memory_stats(self._device)
        # memory outside the allocator counts too, so the allocator gets the rest of the budget
        self._outside_bytes = self._outside()
        share = max(self._budget_bytes - self._outside_bytes, 1) / self._total_bytes
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), self._device)

    def bytes_in_use(self) -> int:
        return torch.cuda.memory_reserved(self._device) + self._outside()

    def allocator_retries(self) -> int:
        return int(torch.cuda.memory_stats(self._device).get("num_alloc_retries", 0))

    def peak(self) -> MemoryPeak:
        torch.cuda.synchronize(self._device)
        reserved = torch.cuda.max_memory_reserved(self._device)
        outside = self._outside()
        return MemoryPeak(
            held_bytes=reserved + outside,
            reserved_bytes=reserved,
            allocated_bytes=torch.cuda.max_memory_allocated(self._device),
            outside_bytes=outside,
        )

    def check(self) -> None:
        """Checks the peak against the limit, for memory that was held before the limit was set.

        Memory that libraries allocated since then does not count: the allocator's share was capped
        before, so training does not fail because of it.

        Raises:
            OverLimit: If the peak is above the limit.
        """
        wanted_bytes = torch.cuda.max_memory_reserved(self._device) + self._outside_bytes
        if wanted_bytes > self.limit_bytes:
            raise OverLimit(wanted_bytes, self.limit_bytes)

    def _lift(self) -> None:
        with contextlib.suppress(RuntimeError):  # a device in error refuses everything
            torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def close(self) -> int:
        _release_cuda()
        # one tensor that is left can hold a segment, and libraries hold memory of their own
        return max(self.bytes_in_use() - self._baseline_bytes, 0)

    def _outside(self) -> int:
        # context, NCCL and other processes
        free, total = torch.cuda.mem_get_info(self._device)
        return max(total - free - torch.cuda.memory_reserved(self._device), 0)


def _release_cuda() -> None:
    gc.collect()
    torch.cuda.synchronize()  # pinned memory is free when the copies that use it are done
    torch.cuda.empty_cache()
    _empty_host_cache()  # of pinned memory, which is kept without a limit


def _empty_host_cache() -> None:
    public = getattr(torch.accelerator, "empty_host_cache", None)  # of torch 2.13
    (public or torch._C._host_emptyCache)()
