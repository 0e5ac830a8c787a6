"""A number with its uncertainty."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A value and the interval that holds it with 95 % confidence, in the value's unit."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise ValueError(f"need low <= value <= high, got {self}")

    @property
    def relative_half_width(self) -> float:
        """Half the interval over the value; infinite where the value is 0."""
        return (self.high - self.low) / 2 / self.value if self.value else float("inf")

    def overlaps(self, other: Estimate) -> bool:
        """Whether the two intervals share a value."""
        return self.low <= other.high and other.low <= self.high
