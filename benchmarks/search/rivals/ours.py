"""Plimsoll's search, with the forecasts of the surface, without any, or with wrong ones."""

from __future__ import annotations

from dataclasses import replace
from typing import final

import numpy as np

from benchmarks.search.rivals.base import AbstractRival, Flags
from benchmarks.search.surfaces import Surface, Trial
from orchestrator.search.encoding import features
from orchestrator.search.observations import Observation
from orchestrator.search.search import CandidatePool, Search


@final
class Plimsoll(AbstractRival):
    """The search that `PlimsollSampler` asks, told the same."""

    def __init__(self, surface: Surface, seed: int) -> None:
        """Believes the surface's forecasts."""
        options = CandidatePool(
            features=features(surface.candidates, surface.distributions),
            log_rate=surface.log_rate,
            log_share=surface.log_share,
            rate_parts=surface.rate_parts,
            share_parts=surface.share_parts,
        )
        self._noise = surface.noise
        self._search = Search(options, seed)
        self._sights: list[Observation] = []

    def next(self, free: Flags) -> int:
        return self._search.next(self._sights, free).row

    def tell(self, row: int, trial: Trial) -> None:
        if trial.rate is None:
            share = max(trial.log_share or 0.0, 0.0)  # it wanted the limit, at least
            self._sights.append(Observation(row=row, log_share=share, ran_out=True))
            return
        sight = Observation(
            row=row,
            log_rate=float(np.log(trial.rate)),
            rate_noise=self._noise,
            log_share=trial.log_share,
            fitted=True,
        )
        self._sights.append(sight)


def without_forecasts(surface: Surface) -> Surface:
    """The surface as one that nobody can forecast."""
    return replace(surface, log_rate=None, log_share=None, rate_parts=None, share_parts=None)


def times_shuffled(surface: Surface, seed: int) -> Surface:
    """The surface with each candidate's forecast of time given to another."""
    if surface.log_rate is None:
        return surface
    order = np.random.default_rng([seed, 1]).permutation(len(surface))
    parts = None if surface.rate_parts is None else surface.rate_parts[order]
    return replace(surface, log_rate=surface.log_rate[order], rate_parts=parts)


def memory_times(surface: Surface, factor: float) -> Surface:
    """The surface with all forecasts of memory off by a factor."""
    if surface.log_share is None:
        return surface
    return replace(surface, log_share=surface.log_share + np.log(factor))
