"""Plimsoll's search, with the forecasts of the surface, without any, or with wrong ones."""

from dataclasses import replace
from typing import final

import numpy as np

from benchmarks.search.competitors.base import AbstractCompetitor, Flags
from benchmarks.search.surfaces import Surface, Trial
from orchestrator.search.observations import Observation, interval_noise
from orchestrator.search.search import CandidatePool, Search


@final
class Plimsoll(AbstractCompetitor):
    """The search of the product, told the same: of a rate's noise, the trial's own interval."""

    def __init__(self, surface: Surface, seed: int) -> None:
        """Takes the surface's forecasts as they are."""
        self._search = Search(pool_of(surface), seed)
        self._observations: list[Observation] = []

    def next(self, free: Flags) -> int:
        return self._search.choose(self._observations, free).row

    def tell(self, row: int, trial: Trial) -> None:
        self._observations.append(observation_of(row, trial))


def pool_of(surface: Surface) -> CandidatePool:
    """The candidates and their forecasts, as the product's search takes them."""
    return CandidatePool(
        features=surface.features(),
        log_rate=surface.log_rate,
        log_share=surface.log_share,
        rate_parts=surface.rate_parts,
        share_parts=surface.share_parts,
    )


def observation_of(row: int, trial: Trial, at: float = 0.0) -> Observation:
    """Returns what the product's search learns of a trial that ran at so many seconds."""
    if trial.rate is None:
        share = max(trial.log_share or 0.0, 0.0)  # it wanted the limit, at least
        return Observation(row=row, log_share=share, ran_out=True)
    return Observation(
        row=row,
        log_rate=float(np.log(trial.rate)),
        rate_noise=interval_noise(trial.rate, trial.rate * (1 + trial.half_width)),
        log_share=trial.log_share,
        fitted=True,
        at=at,
    )


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
