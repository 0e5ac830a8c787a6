"""The memory meter of a rank: limit, peak and residual of its trials."""

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from search_spaces.trial import Anatomy, MemoryReading
from workers.memory.device_runtime import AbstractDeviceRuntime, DeviceMemory

NEARLY_FULL = 0.8  # share of the limit above which a vague error counts as out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes of model state that this rank's device holds."""

    weights: int
    gradients: int
    optimizer_states: int


class OverLimit(MemoryError):
    """Raised after a trial held more memory than the limit."""

    def __init__(self, wanted_bytes: int, limit_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        super().__init__(f"held {wanted_bytes} bytes, but the limit is {limit_bytes}")


class Meter:
    """Meters the memory of one rank, trial by trial.

    A trial calls `open`, then `enforced` around its steps once the model is built, inside it
    `check` and `reading`, and always `close` at the end. Where a trial shares its limit with the
    context and libraries, as on CUDA, all that the device holds counts; on a CPU, what the worker
    held at `open` does not.
    """

    def __init__(self, runtime: AbstractDeviceRuntime, budget_bytes: int | None) -> None:
        """Sets the limit and takes the baseline.

        Args:
            runtime: The runtime of the rank's device.
            budget_bytes: Bytes that a trial may use; None for all that is usable.
        """
        self._runtime = runtime
        usable = runtime.usable_bytes
        self.limit_bytes = min(budget_bytes or usable, usable)
        gc.collect()
        self.open()

    def open(self) -> None:
        """Takes the baseline of a trial."""
        self._runtime.give_back()  # freed memory must not count in the baseline
        baseline = self._runtime.memory()
        counts = self._runtime.counts_baseline
        self._exempt_reserved_bytes = 0 if counts else baseline.reserved_bytes
        self._exempt_claimed_bytes = 0 if counts else baseline.claimed_bytes
        self._outside_bytes = baseline.outside_bytes
        self._baseline_bytes = self._held(baseline)

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Resets the peak and enforces the limit inside the context.

        The limit is lifted before an error is handled, because that takes memory too.
        """
        gc.collect()
        self._runtime.give_back()
        self._runtime.reset_peak()
        # memory outside the allocator counts too, so the allocator gets the rest of the limit
        self._outside_bytes = self._runtime.memory().outside_bytes
        share_bytes = max(self.limit_bytes - self._outside_bytes, 1)
        self._runtime.limit(self._exempt_claimed_bytes + share_bytes)
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # a device in error refuses everything
                self._runtime.limit(None)

    def bytes_in_use(self) -> int:
        """Returns the bytes held now that count against the limit."""
        return self._held(self._runtime.memory())

    def nearly_full(self) -> bool:
        """Returns True if an error without a clear reason may be out of memory."""
        memory = self._runtime.memory()
        claimed_bytes = memory.claimed_bytes - self._exempt_claimed_bytes
        return max(claimed_bytes, self._held(memory)) > NEARLY_FULL * self.limit_bytes

    def reading(self, rank: int, states: StateBytes) -> MemoryReading:
        """Returns the peak since `enforced` was entered, without retries of the allocator.

        Args:
            rank: Of this process.
            states: Model state; the rest of what the allocator gave out are activations.
        """
        self._runtime.synchronize()
        memory = self._runtime.memory()
        reserved, allocated = self._peak_reserved(memory), memory.peak_allocated_bytes
        used = reserved if allocated is None else allocated
        parts = asdict(states)
        return MemoryReading(
            rank=rank,
            limit_bytes=self.limit_bytes,
            peak_bytes=reserved + memory.outside_bytes,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            anatomy=Anatomy(
                **parts,
                activations=max(used - sum(parts.values()), 0),
                fragmentation=None if allocated is None else max(reserved - allocated, 0),
                outside=self._exempt_reserved_bytes + memory.outside_bytes,
            ),
        )

    def allocator_retries(self) -> int:
        """Returns how often the allocator has given its cache back and tried again, so far."""
        return self._runtime.memory().allocator_retries

    def check(self) -> None:
        """Checks the peak against the limit, for memory that the allocator did not refuse.

        Memory that libraries allocated since `enforced` was entered does not count: the
        allocator's share was capped before, so training does not fail because of it.

        Raises:
            OverLimit: If the peak is above the limit.
        """
        wanted_bytes = self._peak_reserved(self._runtime.memory()) + self._outside_bytes
        if wanted_bytes > self.limit_bytes:
            raise OverLimit(wanted_bytes, self.limit_bytes)

    def close(self) -> int:
        """Releases free memory; returns the residual since `open`, in bytes.

        One tensor that is left can hold a segment, and libraries hold memory of their own: both
        are part of the residual.
        """
        gc.collect()
        self._runtime.give_back()
        return max(self.bytes_in_use() - self._baseline_bytes, 0)

    def _held(self, memory: DeviceMemory) -> int:
        own_bytes = max(memory.reserved_bytes - self._exempt_reserved_bytes, 0)
        return own_bytes + memory.outside_bytes

    def _peak_reserved(self, memory: DeviceMemory) -> int:
        return max(memory.peak_reserved_bytes - self._exempt_reserved_bytes, 0)
