"""A model of a device: its numbers, as a driver and a caching allocator would tell them.

`cuda_on_model` puts it below the runtime of accelerators, in the place of torch's functions, and
`tpu_on_model` in the place of those that torch_tpu has.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from workers.memory.device_runtime import AbstractDeviceRuntime, AcceleratorRuntime, DeviceMemory

MIB, GIB = 2**20, 2**30


class Block(NamedTuple):
    """An allocation, and the segment of the device that it is in."""

    size: int
    segment: int


class ModelDevice(AbstractDeviceRuntime):
    """A caching allocator under a cap, other holders of memory, a queue, and errors that stick.

    `outside` may be changed at any time, as libraries and other processes do. `clock` stands still
    except in `synchronize`. `breaks_after` counts calls until every further one fails. One that
    does not `cache` gives a segment back with its block.
    """

    counts_baseline = True

    def __init__(self, total: int = 80 * GIB, outside: int = GIB, *, caches: bool = True) -> None:
        self.caches = caches
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
        if self.caches:
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
def cuda_on_model(model: ModelDevice) -> Iterator[AcceleratorRuntime]:
    """Yields the runtime of CUDA, whose calls into torch are answered by a model."""

    def fraction(share: float, _: torch.device) -> None:
        model.limit(round(share * model.total))

    own = {"set_per_process_memory_fraction": fraction, "Event": _event_of(model)}
    with pytest.MonkeyPatch.context() as patch:
        for name, function in own.items():
            patch.setattr(torch.cuda, name, function)
        _answer(patch, model, {"reserved", "allocated"})
        yield AcceleratorRuntime(torch.device("cuda", 0))


@contextlib.contextmanager
def tpu_on_model(model: ModelDevice) -> Iterator[AcceleratorRuntime]:
    """Yields the runtime of a TPU above a model, with what torch_tpu 0.2.0 has of torch.

    Its module has events and no limit. The allocator is taken to count no reserved bytes.
    """
    device: Any = SimpleNamespace(type="tpu", index=0)  # torch has the name only with torch_tpu
    with pytest.MonkeyPatch.context() as patch:
        module = SimpleNamespace(Event=_event_of(model))
        patch.setattr(torch, "get_device_module", lambda _: module)
        _answer(patch, model, {"allocated"})
        yield AcceleratorRuntime(device)


def _event_of(model: ModelDevice) -> type:
    class Event:
        """An event of the model."""

        def __init__(self, *, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = model.record_event()

        def elapsed_time(self, end: Event) -> float:
            return 1000 * model.seconds_between(self.at, end.at)

    return Event


def _answer(patch: pytest.MonkeyPatch, model: ModelDevice, counted: Set[str]) -> None:
    """Has a model answer `torch.accelerator`, with the statistics of these kinds of bytes."""

    def statistics(_: torch.device) -> dict[str, int]:
        memory = model.memory()
        numbers = {
            "reserved_bytes.all.current": memory.reserved_bytes,
            "reserved_bytes.all.peak": memory.peak_reserved_bytes,
            "allocated_bytes.all.current": model.allocated,
            "allocated_bytes.all.peak": memory.peak_allocated_bytes or 0,
        }
        told = {name: count for name, count in numbers.items() if name.split("_")[0] in counted}
        return told | {"num_alloc_retries": memory.allocator_retries}

    def information(_: torch.device) -> tuple[int, int]:
        model.memory()
        return model.total - model.outside - model.reserved, model.total

    stand_ins: dict[str, Any] = {
        "memory_stats": statistics,
        "get_memory_info": information,
        "reset_peak_memory_stats": lambda _: model.reset_peak(),
        "synchronize": lambda _: model.synchronize(),
        "empty_cache": model.give_back,
        "empty_host_cache": lambda: None,
    }
    for name, function in stand_ins.items():
        patch.setattr(torch.accelerator, name, function, raising=name != "empty_host_cache")
