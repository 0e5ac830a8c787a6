"""A model of a device: its numbers, as a driver and a caching allocator would tell them.

`cuda_on_model` puts it below `CudaRuntime`, in the place of torch's functions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch

from workers.memory.device_runtime import AbstractDeviceRuntime, CudaRuntime, DeviceMemory

MIB, GIB = 2**20, 2**30


class Block(NamedTuple):
    """An allocation, and the segment of the device that it is in."""

    size: int
    segment: int


class ModelDevice(AbstractDeviceRuntime):
    """A caching allocator under a cap, other holders of memory, a queue, and errors that stick.

    `outside` may be changed at any time, as libraries and other processes do. `clock` stands still
    except in `synchronize`. `breaks_after` counts calls until every further one fails.
    """

    counts_baseline = True

    def __init__(self, total: int = 80 * GIB, outside: int = GIB) -> None:
        self.total, self.outside, self.cap = total, outside, total
        self.blocks: list[Block] = []
        self.cache: list[int] = []  # free segments; a block takes a whole one
        self.peak_reserved = self.peak_allocated = self.retries = 0
        self.now = self.kernels_end = 0.0
        self.clock = lambda: self.now
        self.breaks_after: int | None = None

    @property
    def reserved(self) -> int:
        return sum(block.segment for block in self.blocks) + sum(self.cache)

    @property
    def allocated(self) -> int:
        return sum(block.size for block in self.blocks)

    def allocate(self, size: int) -> Block:
        self._call()
        segment = min((each for each in self.cache if each >= size), default=None)
        if segment is not None:
            self.cache.remove(segment)
        elif not self._has_room(size):
            self.retries += 1
            self.cache.clear()
            if not self._has_room(size):
                raise torch.OutOfMemoryError(f"Tried to allocate {size / MIB:.2f} MiB. GPU 0 has")
        block = Block(size, segment or size)
        self.blocks.append(block)
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block) -> None:
        self.blocks.remove(block)
        self.cache.append(block.segment)

    def compute(self, seconds: float) -> None:
        """Queues a kernel, which costs the host no time."""
        self.kernels_end = max(self.clock(), self.kernels_end) + seconds

    def _has_room(self, size: int) -> bool:
        return self.reserved + size <= min(self.cap, self.total - self.outside)

    def _call(self) -> None:
        if self.breaks_after is not None:
            self.breaks_after -= 1
            if self.breaks_after < 0:
                raise torch.AcceleratorError("CUDA error: device-side assert triggered")

    @property
    def usable_bytes(self) -> int:
        return self.total

    def memory(self) -> DeviceMemory:
        self._call()
        return DeviceMemory(
            reserved_bytes=self.reserved,
            peak_reserved_bytes=self.peak_reserved,
            peak_allocated_bytes=self.peak_allocated,
            claimed_bytes=self.reserved,
            outside_bytes=self.outside,
            allocator_retries=self.retries,
        )

    def reset_peak(self) -> None:
        self._call()
        self.peak_reserved, self.peak_allocated = self.reserved, self.allocated

    def limit(self, claimed_bytes: int | None) -> None:
        self._call()
        self.cap = self.total if claimed_bytes is None else claimed_bytes

    def give_back(self) -> None:
        self._call()
        self.cache.clear()

    def synchronize(self) -> None:
        self._call()
        self.now = max(self.now, self.kernels_end)

    def record_event(self) -> float:
        self._call()
        return max(self.clock(), self.kernels_end)

    def seconds_between(self, begin: float, end: float) -> float:
        self._call()
        if end > self.clock():
            raise RuntimeError("device not ready")
        return end - begin


@contextlib.contextmanager
def cuda_on_model(model: ModelDevice) -> Iterator[CudaRuntime]:
    """Yields the runtime of CUDA, whose calls into torch are answered by a model."""

    class Event:
        """An event of the model."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = model.record_event()

        def elapsed_time(self, end: Event) -> float:
            return 1000 * model.seconds_between(self.at, end.at)

    def statistics(_: torch.device) -> dict[str, int]:
        memory = model.memory()
        return {
            "reserved_bytes.all.current": memory.reserved_bytes,
            "reserved_bytes.all.peak": memory.peak_reserved_bytes,
            "allocated_bytes.all.peak": memory.peak_allocated_bytes or 0,
            "num_alloc_retries": memory.allocator_retries,
        }

    def information(_: torch.device) -> tuple[int, int]:
        model.memory()
        return model.total - model.outside - model.reserved, model.total

    def fraction(share: float, _: torch.device) -> None:
        model.limit(round(share * model.total))

    stand_ins: dict[Any, dict[str, Any]] = {
        torch.accelerator: {
            "memory_stats": statistics,
            "get_memory_info": information,
            "reset_peak_memory_stats": lambda _: model.reset_peak(),
            "synchronize": lambda _: model.synchronize(),
            "empty_cache": model.give_back,
            "empty_host_cache": lambda: None,
        },
        torch.cuda: {"set_per_process_memory_fraction": fraction, "Event": Event},
    }
    with pytest.MonkeyPatch.context() as patch:
        for module, functions in stand_ins.items():
            for name, function in functions.items():
                patch.setattr(module, name, function, raising=name != "empty_host_cache")
        yield CudaRuntime(torch.device("cuda", 0))
