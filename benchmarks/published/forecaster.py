"""Interface of a forecaster that is judged: it forecasts runs and can be given records."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.published.values import Run

Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunForecasts:
    """Columns, a row for each run; nan where it cannot be forecast.

    Memory is in bytes of the fullest device, counted as the run's table counts it; `peak_share` is
    all that it holds over what it has. The parts, of shape (runs, coefficients), say by how much a
    standard deviation of each coefficient moves the logarithms of speed and of `peak_share`.
    """

    samples_per_second: Numbers
    memory_bytes: Numbers
    p_fits: Numbers
    peak_share: Numbers
    rate_parts: Numbers | None = None
    share_parts: Numbers | None = None


class Forecaster(Protocol):
    """Forecasts runs, better where it was given records of runs alike."""

    def forecast(self, runs: Sequence[Run]) -> RunForecasts:
        """Returns what the runs are expected to take."""
        ...

    def calibrated(self, records: Sequence[Run]) -> Self:
        """The same, having seen what these runs measured."""
        ...


ForecasterWithout = Callable[[str], Forecaster]
"""The forecaster whose coefficients were found without a source (a file's stem)."""
