"""Interface of memory meters: limit, peak and residual of a trial on one rank."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

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
