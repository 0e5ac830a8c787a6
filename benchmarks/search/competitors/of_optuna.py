"""Optuna's samplers, with the memory constraint."""

import warnings
from collections.abc import Mapping
from typing import Any, final

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, RandomSampler, TPESampler
from optuna.trial import TrialState, create_trial

from benchmarks.search.competitors.base import AbstractCompetitor, Flags
from benchmarks.search.surfaces import Surface, Trial
from orchestrator.search.encoding import position
from orchestrator.search.observations import CONSTRAINT

Numbers = NDArray[np.float64]
_UNKNOWN = 0.1  # how far from the limit a trial is taken to be that only ran, or only did not


@final
class OfOptuna(AbstractCompetitor):
    """A sampler of Optuna with the memory constraint; the free candidate nearest to its proposal.

    The constraint is what a trial held or wanted over the limit, less 1, where that is known. A
    candidate that ran out of memory has the worst value measured so far too, since samplers pass
    over trials without a value.
    """

    def __init__(self, surface: Surface, seed: int, sampler: BaseSampler) -> None:
        """Knows nothing yet."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._candidates = surface.candidates
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._space = dict(surface.distributions)
        self._random = np.random.default_rng(seed)
        self._places = np.array(
            [
                [position(self._space[name], c[name]) for name in self._space]
                for c in surface.candidates
            ]
        )
        self._worst: float | None = None

    def next(self, free: Flags) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = self._study.ask(self._space)
        self._study.tell(asked, state=TrialState.FAIL)
        far = self._distances(asked.params)[free]
        nearest = np.flatnonzero(far <= far.min() + 1e-12)
        return int(np.flatnonzero(free)[self._random.choice(nearest)])

    def tell(self, row: int, trial: Trial) -> None:
        if trial.rate is not None:
            self._worst = trial.rate if self._worst is None else min(self._worst, trial.rate)
        value = trial.rate if trial.rate is not None else self._worst or 0.0
        self._study.add_trial(
            create_trial(
                params=dict(self._candidates[row]),
                distributions=self._space,
                value=value,
                constraints={CONSTRAINT: _excess(trial)},
            )
        )

    def _distances(self, wanted: Mapping[str, Any]) -> Numbers:
        far = np.zeros(len(self._candidates))
        for column, (name, distribution) in enumerate(self._space.items()):
            apart = np.abs(self._places[:, column] - position(distribution, wanted[name]))
            word = isinstance(distribution, CategoricalDistribution)
            far += apart > 0 if word else apart
        return far


def _excess(trial: Trial) -> float:
    """The constraint: at 0 or below a trial is feasible."""
    if trial.log_share is not None:
        return float(np.expm1(trial.log_share)) + (1e-6 if trial.rate is None else 0.0)
    return _UNKNOWN if trial.rate is None else -_UNKNOWN


def tpe(surface: Surface, seed: int) -> OfOptuna:
    """Optuna's TPE over all knobs together."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OfOptuna(surface, seed, TPESampler(multivariate=True, seed=seed))


def gp(surface: Surface, seed: int) -> OfOptuna:
    """Optuna's Gaussian process."""
    return OfOptuna(surface, seed, GPSampler(seed=seed))


def random(surface: Surface, seed: int) -> OfOptuna:
    """Knobs drawn at random, each for itself."""
    return OfOptuna(surface, seed, RandomSampler(seed=seed))
