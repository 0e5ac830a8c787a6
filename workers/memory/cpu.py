"""Memory meter of a CPU rank: a budget of resident memory, enforced on torch's allocator.

`RLIMIT_DATA` bounds the private writable memory of the process. An allocation beyond it fails,
and the process continues. The limit counts address space. In a warm process that includes holes
from earlier trials, which are not resident and can be reused. The limit is therefore the
address space at the start of the trial plus the budget. A trial that fits only by reusing holes
is caught by its resident peak (`AbstractMeter.check`).

The resident peak is VmHWM, which the kernel resets on request. Glibc's thresholds stay: a lower
mmap threshold was measured to halve the speed of small models. `malloc_trim` returns memory
after each trial instead.

Source: setrlimit(2), proc(5) (status, clear_refs), malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

import psutil

from workers.memory.meter import NEARLY_FULL, AbstractMeter, MemoryPeak

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
        _release()
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
        _release()
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


def _release() -> None:
    gc.collect()
    _trim()


def _trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)
