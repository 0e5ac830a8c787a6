"""What is believed of a quantity of every candidate: a prior forecast, corrected by what was seen.

The logarithm of a quantity is modelled as

    y = x + a + b (x - mean of x) + f(knobs) + g + noise

with the forecast x, an offset a and a slope b that say how far the forecast is to be trusted, a
smooth function f of the knobs (Matern 5/2, Rasmussen & Williams 2006, section 4.2) and what each
plan has to itself, g. How large f, g and b are, and how smooth f is, is chosen by the evidence
among few values, weighed by what is usual.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from orchestrator.search.gaussian import Numbers, Observations, Posterior, posterior


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """Standard deviations of the parts of y, and the distance over which f changes."""

    offset: float
    slope: float
    smooth: float
    alone: float
    distance: float


# of which one is chosen; the first of each is what is usual with a good forecast
_SLOPES = (0.1, 1.0)
_SMOOTH = (0.1, 0.03, 0.3, 1.0)
_ALONE = (0.01, 0.04)
_DISTANCES = (1.0, 0.5, 2.0)
_USUAL = 0.4  # nats of evidence that each step away from the usual costs


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Belief:
    """Mean and standard deviation of y for every candidate."""

    mean: Numbers
    deviation: Numbers
    structure: Structure


class Surrogate:
    """Beliefs of one quantity over fixed candidates, from ever more observations."""

    def __init__(self, features: Numbers, forecast: Numbers | None, offset: float) -> None:
        """Believes the forecast.

        Args:
            features: Of shape (candidates, features): places of candidates by their knobs, of
                which a distance of 1 is from one end of a knob to the other.
            forecast: Expected logarithms of shape (candidates,); None if there is no forecast.
            offset: Standard deviation of what all candidates have in common.
        """
        self._features = features.astype(np.float64)
        self._forecast = np.zeros(len(features)) if forecast is None else forecast
        self._told = forecast is not None
        self._centred = self._forecast - self._forecast.mean()
        self._offset = offset

    def belief(self, rows: np.ndarray, seen: Observations) -> Belief:
        """What is believed of all candidates.

        Args:
            rows: The candidate of each observation; one may be seen several times.
            seen: The observations.
        """
        structure, found = self._chosen(rows, seen)
        covariance = self._covariance(structure, None, rows)
        mean = self._forecast + found.mean(covariance)
        before = (
            structure.offset**2
            + (structure.slope * self._centred) ** 2
            + structure.smooth**2
            + structure.alone**2
        )
        variance = before - found.explained(covariance)
        return Belief(
            mean=mean,
            deviation=np.sqrt(np.maximum(variance, 1e-10)),
            structure=structure,
        )

    def _chosen(self, rows: np.ndarray, seen: Observations) -> tuple[Structure, Posterior]:
        best: tuple[float, Structure, Posterior] | None = None
        slopes = _SLOPES if self._told else (0.0,)
        for choice in itertools.product(
            enumerate(slopes), enumerate(_SMOOTH), enumerate(_ALONE), enumerate(_DISTANCES)
        ):
            away = sum(place > 0 for place, _ in choice)
            slope, smooth, alone, distance = (value for _, value in choice)
            structure = Structure(
                offset=self._offset, slope=slope, smooth=smooth, alone=alone, distance=distance
            )
            found = posterior(self._covariance(structure, rows, rows), self._forecast[rows], seen)
            evidence = found.log_evidence - _USUAL * away
            if best is None or evidence > best[0]:
                best = evidence, structure, found
            if not len(rows):
                break
        assert best is not None
        return best[1], best[2]

    def _covariance(
        self, structure: Structure, rows: np.ndarray | None, others: np.ndarray
    ) -> Numbers:
        """Covariances of y without noise between candidates (all if None) and others."""
        places = self._features if rows is None else self._features[rows]
        centred = self._centred if rows is None else self._centred[rows]
        other = self._features[others]
        squared = (
            (places**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * places @ other.T
        )
        apart = np.sqrt(np.maximum(squared, 0.0)) * (5**0.5 / structure.distance)
        smooth = structure.smooth**2 * (1 + apart + apart**2 / 3) * np.exp(-apart)
        names = np.arange(len(self._features)) if rows is None else rows
        same = structure.alone**2 * (names[:, None] == others[None])
        common = structure.offset**2 + structure.slope**2 * np.outer(centred, self._centred[others])
        covariance: Numbers = common + smooth + same
        return covariance
