"""How much memory a trial takes on a device, and whether it gives it back."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

NEARLY_FULL = 0.8  # share of the limit beyond which a vague error is read as out of memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """The most memory held since the last reset, in bytes.

    `held_bytes` is what counts against the limit; `allocated_bytes` is None where the
    allocator does not count; `outside_bytes` is what lies outside the allocator.
    """

    held_bytes: int
    reserved_bytes: int
    allocated_bytes: int | None
    outside_bytes: int


class OverLimit(MemoryError):
    """More memory was held than the limit allows."""

    def __init__(self, wanted_bytes: int, limit_bytes: int) -> None:
        self.wanted_bytes = wanted_bytes
        super().__init__(f"held {wanted_bytes} bytes, the limit is {limit_bytes}")


class AbstractMeter(ABC):
    """Memory of one rank on one kind of device.

    A trial calls, in this order: `open`, `enforced` around its steps once the model is in place,
    in there `check` and `peak`, and in any case `close`.
    """

    @abstractmethod
    def open(self) -> None:
        """Takes the baseline that the trial starts from."""

    @property
    @abstractmethod
    def limit_bytes(self) -> int:
        """The most that a trial may hold, in bytes."""

    @contextlib.contextmanager
    def enforced(self) -> Iterator[None]:
        """Resets the peak and holds what happens inside to the limit.

        The limit is off again before anybody handles an error, which takes memory too.
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
    def held(self) -> int:
        """Bytes held now that count against the limit."""

    def nearly_full(self) -> bool:
        """Whether so much of the limit is used that an error which names no reason may be it."""
        return self.held() > NEARLY_FULL * self.limit_bytes

    @abstractmethod
    def peak(self) -> Peak:
        """The most that was held since `enforced` was entered."""

    def check(self) -> None:
        """Compares the peak with the limit, for what the allocator itself let pass.

        Raises:
            OverLimit: If more was held than the limit allows.
        """
        wanted_bytes = self.peak().held_bytes
        if wanted_bytes > self.limit_bytes:
            raise OverLimit(wanted_bytes, self.limit_bytes)

    @abstractmethod
    def close(self) -> int:
        """Gives free memory back; returns what did not come back since `open`, in bytes."""
