"""Who searches a surface: one candidate after the other, none twice."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import TrialState, create_trial

from benchmarks.search.surfaces import Numbers, Surface
from orchestrator.search.evidence import Sight
from orchestrator.search.search import Options, Search
from orchestrator.study.constraint import CONSTRAINT
from orchestrator.study.features import features, place


class AbstractRival(ABC):
    """Searches one surface."""

    def __init__(self, surface: Surface, seed: int) -> None:
        self._surface = surface
        self._seed = seed

    @abstractmethod
    def next(self, free: np.ndarray) -> int:
        """The candidate to measure next, of those that are free."""

    @abstractmethod
    def tell(self, row: int, rate: float | None) -> None:
        """What was measured of a candidate; None if it ran out of memory or failed."""


@final
class ByChance(AbstractRival):
    """A random order."""

    def __init__(self, surface: Surface, seed: int) -> None:
        super().__init__(surface, seed)
        self._random = np.random.default_rng(seed)

    def next(self, free: np.ndarray) -> int:
        return int(self._random.choice(np.flatnonzero(free)))

    def tell(self, row: int, rate: float | None) -> None:
        pass


@final
class Plimsoll(AbstractRival):
    """Plimsoll's search, with the forecasts of the surface or without any."""

    def __init__(self, surface: Surface, seed: int, *, forecasts: bool = True) -> None:
        super().__init__(surface, seed)
        options = Options(
            features=features(surface.candidates, surface.distributions),
            log_rate=surface.log_rate if forecasts else None,
            log_share=surface.log_share if forecasts else None,
        )
        self._search = Search(options, seed)
        self._sights: list[Sight] = []

    def next(self, free: np.ndarray) -> int:
        return self._search.next(self._sights, free).row

    def tell(self, row: int, rate: float | None) -> None:
        if rate is None:
            self._sights.append(Sight(row=row, log_share=0.0, ran_out=True))
            return
        log_rate = float(np.log(rate))
        noise = self._surface.noise
        self._sights.append(Sight(row=row, log_rate=log_rate, rate_noise=noise, fitted=True))


@final
class OfOptuna(AbstractRival):
    """A sampler of Optuna with the memory constraint; the free candidate nearest to its proposal.

    A candidate that ran out of memory has a broken constraint and the worst value measured so far,
    since samplers pass over trials without a value.
    """

    def __init__(self, surface: Surface, seed: int, sampler: BaseSampler) -> None:
        super().__init__(surface, seed)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._study = optuna.create_study(direction="maximize", sampler=sampler)
        self._space = dict(surface.distributions)
        self._random = np.random.default_rng(seed)
        self._places = np.array(
            [
                [place(self._space[name], c[name]) for name in self._space]
                for c in surface.candidates
            ]
        )
        self._worst: float | None = None

    def next(self, free: np.ndarray) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asked = self._study.ask(self._space)
        self._study.tell(asked, state=TrialState.FAIL)
        far = self._distances(asked.params)[free]
        nearest = np.flatnonzero(far <= far.min() + 1e-12)
        return int(np.flatnonzero(free)[self._random.choice(nearest)])

    def tell(self, row: int, rate: float | None) -> None:
        if rate is not None:
            self._worst = rate if self._worst is None else min(self._worst, rate)
        value = rate if rate is not None else self._worst or 0.0
        self._study.add_trial(
            create_trial(
                params=dict(self._surface.candidates[row]),
                distributions=self._space,
                value=value,
                constraints={CONSTRAINT: 0.1 if rate is None else -0.1},
            )
        )

    def _distances(self, wanted: Mapping[str, Any]) -> Numbers:
        far = np.zeros(len(self._surface))
        for column, (name, distribution) in enumerate(self._space.items()):
            apart = np.abs(self._places[:, column] - place(distribution, wanted[name]))
            word = isinstance(distribution, CategoricalDistribution)
            far += apart > 0 if word else apart
        return far


def _tpe(surface: Surface, seed: int) -> AbstractRival:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return OfOptuna(surface, seed, TPESampler(multivariate=True, seed=seed))


def _gp(start: int) -> Callable[[Surface, int], AbstractRival]:
    def made(surface: Surface, seed: int) -> AbstractRival:
        return OfOptuna(surface, seed, GPSampler(n_startup_trials=start, seed=seed))

    return made


RIVALS: Mapping[str, Callable[[Surface, int], AbstractRival]] = {
    "plimsoll": Plimsoll,
    "plimsoll without forecasts": lambda surface, seed: Plimsoll(surface, seed, forecasts=False),
    "tpe": _tpe,
    "gp": _gp(10),
    "gp, 3 at random first": _gp(3),
    "random": ByChance,
}
