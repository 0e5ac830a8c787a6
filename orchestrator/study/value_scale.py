"""Objective values of any study as quantities that a search on logarithms can model."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from optuna.study import StudyDirection

_SHRINK = 0.5  # the search expects candidates to differ by about this much
_LEAST_NOISE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueScale:
    """A monotone map of values: higher is better, and the best candidates lie near each other.

    Values above 0 are compared by their logarithms. Where one is 0 or less, logarithms do not
    exist: values are then compared by `asinh((value - centre) / spread)`, which is linear around
    the median and logarithmic far from it, so that one huge penalty does not hide what
    distinguishes the others.
    """

    sign: int  # 1 to maximise, -1 to minimise
    centre: float = 0.0
    spread: float | None = None  # None: logarithms

    @classmethod
    def of(cls, values: Sequence[float], direction: StudyDirection) -> Self:
        """The scale of a study's finite values."""
        sign = -1 if direction == StudyDirection.MINIMIZE else 1
        if all(value > 0 for value in values):
            return cls(sign=sign)
        centre = statistics.median(values)
        spread = statistics.median(abs(value - centre) for value in values)
        # more than half of the values may be equal
        return cls(sign=sign, centre=centre, spread=spread or statistics.pstdev(values) or 1.0)

    def scaled(self, value: float) -> float:
        """The quantity that the search maximises."""
        if self.spread is None:
            return self.sign * math.log(value)
        return self.sign * _SHRINK * math.asinh((value - self.centre) / self.spread)

    def value(self, scaled: float) -> float:
        """The inverse of `scaled`."""
        if self.spread is None:
            return math.exp(self.sign * scaled)
        return self.centre + self.spread * math.sinh(self.sign * scaled / _SHRINK)

    def noise(self, value: float, share: float) -> float:
        """Standard deviation of `scaled`, where that of the value is a share of it."""
        if self.spread is None:
            return share
        far = (value - self.centre) / self.spread
        slope = _SHRINK / self.spread / math.hypot(1.0, far)
        return max(share * abs(value) * slope, _LEAST_NOISE)
