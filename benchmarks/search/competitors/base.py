"""Interface of a competitor in a race."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import final

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.surfaces import Surface, Trial

Flags = NDArray[np.bool_]
Strategy = Generator[int, Trial, None]
"""Yields candidates and is sent what was measured of each."""


class AbstractCompetitor(ABC):
    """Searches one surface: one candidate after the other, none twice."""

    @abstractmethod
    def next(self, free: Flags) -> int:
        """The candidate to measure next, of those that are free."""

    @abstractmethod
    def tell(self, row: int, trial: Trial) -> None:
        """Takes in what was measured of a candidate."""


@final
class ByStrategy(AbstractCompetitor):
    """Follows a strategy to its end, then takes what is left in a random order.

    What the strategy asks for again is answered from memory and costs no trial.
    """

    def __init__(
        self,
        surface: Surface,
        seed: int,
        strategy: Callable[[Surface, np.random.Generator], Strategy],
    ) -> None:
        """Takes the first step."""
        self._random = np.random.default_rng(seed)
        self._strategy = strategy(surface, self._random)
        self._told: dict[int, Trial] = {}
        self._wanted = next(self._strategy, None)

    def next(self, free: Flags) -> int:
        while self._wanted is not None and self._wanted in self._told:
            try:
                self._wanted = self._strategy.send(self._told[self._wanted])
            except StopIteration:
                self._wanted = None
        if self._wanted is None:
            return int(self._random.choice(np.flatnonzero(free)))
        return self._wanted

    def tell(self, row: int, trial: Trial) -> None:
        self._told[row] = trial
