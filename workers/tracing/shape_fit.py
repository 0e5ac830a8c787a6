"""Fits of costs as functions of micro-batch and tensor degree, from traces at a few points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from search_spaces.costs.footprint import Extent, Peak

_DIGITS = 6  # further digits are rounding errors of the solution
# points that decide which lines make a peak
_PEAK_BATCHES = tuple(range(1, 17)) + tuple(2**power for power in range(5, 11))
_PEAK_DEGREES = (2, 4, 8, 16, 64)
Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """The runs of a trace: each micro-batch at each tensor degree, degrees outermost.

    One degree means that nothing is split.
    """

    micro_batches: tuple[int, int]
    degrees: tuple[int, ...] = (1,)

    @property
    def points(self) -> tuple[tuple[int, int], ...]:
        """The micro-batch and degree of each run."""
        return tuple((batch, degree) for degree in self.degrees for batch in self.micro_batches)

    def solve(self, seen: ArrayLike) -> Numbers:
        """Returns the coefficients of `Extent` for measured values; runs are the first axis."""
        matrix = np.array([_basis(*point) for point in self.points])
        values = np.asarray(seen, dtype=np.float64)
        if len(self.degrees) == 1:
            solved = np.zeros((4, *values.shape[1:]))
            solved[:2] = np.linalg.solve(matrix[:, :2], values.reshape(2, -1)).reshape(
                2, *values.shape[1:]
            )
            return solved
        return np.linalg.solve(matrix, values.reshape(4, -1)).reshape(4, *values.shape[1:])

    def extent(self, seen: Sequence[float]) -> Extent:
        """Fits one quantity to its values in each run."""
        return as_extent(self.solve(seen))

    def peak(self, seen: Sequence[Numbers]) -> Peak:
        """Fits the maximum of many affine quantities.

        Args:
            seen: Values of the quantities in each run, in the same order. If the runs have
                different numbers of them, their maximum is taken to be affine.
        """
        if len({len(one) for one in seen}) > 1:
            return Peak(lines=(self.extent([one.max(initial=0.0) for one in seen]),))
        lines = self.solve(np.stack(seen))
        if not lines.size:
            return Peak()
        degrees = _PEAK_DEGREES if len(self.degrees) > 1 else (1,)
        points = [_basis(batch, degree) for degree in degrees for batch in _PEAK_BATCHES]
        largest = dict.fromkeys(int(index) for index in (np.array(points) @ lines).argmax(axis=1))
        return Peak(lines=tuple(dict.fromkeys(as_extent(lines[:, index]) for index in largest)))


def as_extent(coefficients: Numbers) -> Extent:
    """Makes an extent of its four coefficients."""
    fixed, per_sample, split_fixed, split_per_sample = (
        round(float(value), _DIGITS) + 0.0 for value in coefficients
    )
    return Extent(
        fixed=fixed,
        per_sample=per_sample,
        split_fixed=split_fixed,
        split_per_sample=split_per_sample,
    )


def _basis(micro_batch: int, degree: int) -> tuple[float, float, float, float]:
    return (1.0, micro_batch, 1 / degree, micro_batch / degree)
