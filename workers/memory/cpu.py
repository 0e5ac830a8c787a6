"""Memory of a CPU rank: a budget of resident memory that torch's allocator really runs into.

`RLIMIT_DATA` bounds the private writable memory of the process: an allocation past it fails with
an error and the process goes on. It counts address space, and that of a warm process has holes
where earlier trials were, which can be used again and are not resident. So the bound is what the
process holds when the trial starts plus the budget, and a trial that fits it by way of holes is
held to the budget by its resident peak (`AbstractMeter.check`).

The resident peak is VmHWM, which the kernel resets on request. Glibc's thresholds stay as they
are, since a lower mmap threshold was measured to halve the speed of small models; memory is given
back by `malloc_trim` after each trial instead.

Source: setrlimit(2), proc(5) (status, clear_refs), malloc_trim(3).
"""

from __future__ import annotations

import ctypes
import gc
import resource
from pathlib import Path

import psutil

from workers.memory.meter import NEARLY_FULL, AbstractMeter, Peak

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"
_MACHINE_SHARE = 0.9  # of the free memory, where no budget is given: leaves room for the system


class CpuMeter(AbstractMeter):
    """Resident memory above the worker's baseline, held under a budget."""

    def __init__(self, budget_bytes: int | None, local_world_size: int) -> None:
        """Looks at the machine.

        Args:
            budget_bytes: Bytes a trial may use; None: an equal share of the free memory.
            local_world_size: Ranks on this machine.
        """
        free = int(psutil.virtual_memory().available * _MACHINE_SHARE / local_world_size)
        self._budget_bytes = min(budget_bytes, free) if budget_bytes else free
        gc.collect()
        self.open()

    def open(self) -> None:
        _trim()  # what is free is given back before the limit is in force: it is no part of this
        self._ground_bytes = _status("VmData")
        self._baseline_bytes = _status("VmRSS")

    @property
    def limit_bytes(self) -> int:
        return self._budget_bytes

    def _enforce(self) -> None:
        _give_back()
        _CLEAR_REFS.write_text(_RESET_PEAK)
        _set_soft_limit(self._ground_bytes + self._budget_bytes)

    def _lift(self) -> None:
        _set_soft_limit(None)

    def held(self) -> int:
        return max(_status("VmRSS") - self._baseline_bytes, 0)

    def nearly_full(self) -> bool:
        # the limit that an allocation meets is of address space, which need not be resident
        used = _status("VmData") - self._ground_bytes
        return used > NEARLY_FULL * self.limit_bytes or super().nearly_full()

    def peak(self) -> Peak:
        resident = max(_status("VmHWM") - self._baseline_bytes, 0)
        return Peak(
            held_bytes=resident,
            reserved_bytes=resident,
            allocated_bytes=None,
            outside_bytes=self._baseline_bytes,
        )

    def close(self) -> int:
        _give_back()
        return max(_status("VmRSS") - self._baseline_bytes, 0)


def _set_soft_limit(limit_bytes: int | None) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = hard if limit_bytes is None else limit_bytes
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _status(field: str) -> int:
    """A memory field of /proc/self/status in bytes."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def _give_back() -> None:
    gc.collect()
    _trim()


def _trim() -> None:
    ctypes.CDLL(None).malloc_trim(0)
