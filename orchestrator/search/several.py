"""What is left to doubt of candidates as ever more of them are under way: several from one fit."""

from __future__ import annotations

from typing import final

import numpy as np

from orchestrator.search.gaussian import Numbers
from orchestrator.search.surrogate import Learned, Rows

_LEAST_VARIANCE = 1e-10


@final
class Doubts:
    """Deviations of candidates, each taken candidate dreamt to end as it is believed to.

    Means stay where they are then, and what is left of the variances follows from the posterior
    covariances with the taken one: no matrix is factored again (Rasmussen & Williams 2006,
    appendix A.2, one observation at a time).
    """

    def __init__(self, learned: Learned, rows: Rows, deviation: Numbers, noise: float) -> None:
        """Begins with what is believed.

        Args:
            learned: What was learned of the quantity.
            rows: The candidates.
            deviation: Of each of them, by what was learned.
            noise: How exactly what is dreamt is taken to be known, as a deviation.
        """
        self._learned = learned
        self._rows = rows
        self._variance = deviation**2
        self._noise = noise**2 + learned.structure.noise**2
        covariance = learned.surrogate.covariance(learned.structure, rows, learned.rows)
        self._whitened = learned.posterior.whitened(covariance)
        self._steps: list[Numbers] = []

    def without(self, at: int) -> Numbers:
        """Deviations once the candidate at this place of the rows is under way too."""
        learned, one = self._learned, self._rows[at : at + 1]
        prior = learned.surrogate.covariance(learned.structure, self._rows, one)[:, 0]
        shared = prior - self._whitened.T @ self._whitened[:, at]
        for step in self._steps:
            shared -= step * step[at]
        step = shared / np.sqrt(self._variance[at] + self._noise)
        self._steps.append(step)
        self._variance = np.maximum(self._variance - step**2, _LEAST_VARIANCE)
        left: Numbers = np.sqrt(self._variance)
        return left
