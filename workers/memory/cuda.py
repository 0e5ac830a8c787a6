"""Memory meter of a CUDA rank: torch's caching allocator and memory outside it."""

from __future__ import annotations

import gc

import torch

from workers.memory.meter import AbstractMeter, MemoryPeak


class CudaMeter(AbstractMeter):
    """Meters reserved memory plus context and communication buffers on one CUDA device."""

    def __init__(self, budget_bytes: int | None, device: torch.device) -> None:
        """Sets the limit.

        Args:
            budget_bytes: Bytes of the device that this rank may use; None for all of them.
            device: A CUDA device with an index.
        """
        self._device = device
        _, total = torch.cuda.mem_get_info(device)
        self._total_bytes = total
        self._budget_bytes = min(budget_bytes or total, total)
        self._baseline_bytes = 0

    def open(self) -> None:
        self._baseline_bytes = torch.cuda.memory_allocated(self._device)

    @property
    def limit_bytes(self) -> int:
        return self._budget_bytes

    def _enforce(self) -> None:
        torch.cuda.synchronize(self._device)
        _release()
        torch.cuda.reset_peak_memory_stats(self._device)
        # memory outside the allocator counts too, so the allocator gets the rest of the budget
        share = max(self._budget_bytes - self._outside(), 1) / self._total_bytes
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), self._device)

    def bytes_in_use(self) -> int:
        return torch.cuda.memory_reserved(self._device) + self._outside()

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

    def _lift(self) -> None:
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)

    def close(self) -> int:
        _release()
        return max(torch.cuda.memory_allocated(self._device) - self._baseline_bytes, 0)

    def _outside(self) -> int:
        # context, NCCL and other processes
        free, total = torch.cuda.mem_get_info(self._device)
        return max(total - free - torch.cuda.memory_reserved(self._device), 0)


def _release() -> None:
    gc.collect()
    torch.cuda.empty_cache()
