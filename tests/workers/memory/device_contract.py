"""The contract of device runtimes: what holds after any sequence of operations, on any device."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch

from workers.memory.device_runtime import AbstractDeviceRuntime, DeviceMemory
from workers.memory.oom import failed_allocation

MIB = 2**20

# A name and MiB: of the block, or beyond what is claimed at that moment
Operation = tuple[
    Literal["allocate", "free", "reset_peak", "give_back", "limit", "lift"], int
]  # fmt: skip


class Contract:
    """A runtime under test, with what it must tell by all that was done so far.

    Args:
        runtime: The runtime.
        device: Its device.
        allocate: Allocates so many bytes, and returns what frees them.
        slack_bytes: By how much the allocator's rounding, or the kernel's counts, may differ.
    """

    def __init__(
        self,
        runtime: AbstractDeviceRuntime,
        device: torch.device,
        allocate: Callable[[int], Callable[[], None]],
        slack_bytes: int,
    ) -> None:
        self._runtime, self._device, self._allocate = runtime, device, allocate
        self._slack_bytes = slack_bytes
        self._blocks: list[tuple[int, Callable[[], None]]] = []
        self._cap: int | None = None
        runtime.give_back()
        runtime.reset_peak()
        self._start = self._before = runtime.memory()
        self._peak_bytes = 0

    @property
    def _live_bytes(self) -> int:
        return sum(size for size, _ in self._blocks)

    def obey(self, operations: Sequence[Operation]) -> None:
        """Runs operations, and checks the runtime after each; frees everything at the end."""
        try:
            for name, mib in operations:
                self._run(name, mib * MIB)
                self._check(name)
        finally:
            self._runtime.limit(None)
            for _, free in self._blocks:
                free()
        self._blocks.clear()
        self._cap = None
        self._runtime.give_back()
        self._check("give_back")

    def _run(self, name: str, size: int) -> None:
        match name:
            case "allocate":
                self._try_allocation(size)
            case "free" if self._blocks:
                self._blocks.pop(size // MIB % len(self._blocks))[1]()
            case "reset_peak":
                self._runtime.reset_peak()
                self._peak_bytes = self._live_bytes
            case "give_back":
                self._runtime.give_back()
            case "limit":
                cap = self._runtime.memory().claimed_bytes + size
                self._runtime.limit(cap)
                self._cap = cap if self._runtime.limits_allocations else None
            case "lift":
                self._cap = None
                self._runtime.limit(None)

    def _try_allocation(self, size: int) -> None:
        try:
            free = self._allocate(size)
        except (RuntimeError, MemoryError) as error:
            self._check_refusal(error, size)
        else:
            self._blocks.append((size, free))
            self._peak_bytes = max(self._peak_bytes, self._live_bytes)

    def _check_refusal(self, error: Exception, size: int) -> None:
        wanted = failed_allocation(error, self._device, nearly_full=False)
        assert wanted is not None, f"not an error of memory: {error}"
        assert (wanted.where, wanted.asked_bytes) == ("device", size)
        assert self._cap is not None, "refused without a limit"
        claimed = self._runtime.memory().claimed_bytes
        assert claimed + size + self._slack_bytes > self._cap, "refused below the limit"

    def _check(self, name: str) -> None:
        memory, start, slack = self._runtime.memory(), self._start, self._slack_bytes
        grown = memory.reserved_bytes - start.reserved_bytes
        assert grown >= self._live_bytes - slack, "less is reserved than is in use"
        assert memory.peak_reserved_bytes >= memory.reserved_bytes - slack
        peak_grown = memory.peak_reserved_bytes - start.reserved_bytes
        assert peak_grown >= self._peak_bytes - slack, "the peak was missed"
        if memory.peak_allocated_bytes is not None:
            assert memory.peak_allocated_bytes >= self._peak_bytes
        if self._cap is not None and name == "allocate":
            assert memory.claimed_bytes <= self._cap, "the limit does not hold"
        if name == "give_back" and not self._blocks:  # one block may hold a larger segment
            assert grown <= slack, "memory that nothing uses was kept"
        if name == "reset_peak":
            assert memory.peak_reserved_bytes <= memory.reserved_bytes + slack, "an old peak"
        assert memory.allocator_retries >= self._before.allocator_retries
        self._before: DeviceMemory = memory


def check_events(runtime: AbstractDeviceRuntime, compute: Callable[[], object]) -> float:
    """Checks that events enclose what was computed between them; returns its seconds."""
    runtime.synchronize()
    started = runtime.clock()
    first = runtime.record_event()
    compute()
    second = runtime.record_event()
    third = runtime.record_event()
    runtime.synchronize()
    passed = runtime.clock() - started
    seconds, pause = runtime.seconds_between(first, second), runtime.seconds_between(second, third)
    assert min(seconds, pause) >= 0
    assert seconds + pause <= 1.01 * passed + 1e-4
    return seconds
