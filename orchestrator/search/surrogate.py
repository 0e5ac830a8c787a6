"""What is believed of a quantity of every candidate: a prior forecast, corrected by what was seen.

The logarithm of a quantity is modelled as

    y = x + sum_k c_k s_k + a + b (x - mean of x) + e(knobs) + f(knobs) + g + noise

with the forecast x, corrections c_k of its coefficients times how much of x each makes up (s_k), an
offset a and a slope b that say how far the forecast is to be trusted, what each knob does by
itself, e, a smooth function f of all knobs (Matern 5/2, Rasmussen & Williams 2006, section 4.2) and
what each plan has to itself, g. All are normal, so that coefficients and the rest are estimated at
once and in closed form. How large b, e, f and g are, how smooth f is, and how much noise values
have that they do not tell, is chosen by the evidence among few values, weighed by what is usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.search.gaussian import Numbers, Observations, Posterior, posterior

Rows = NDArray[np.intp]
# of which one is chosen; the first of each is what is usual with a good forecast
_SLOPES = (0.1, 1.0)
_EFFECTS = (0.0, 0.2, 0.6)
_SMOOTH = (0.1, 0.03, 0.3, 1.0)
_ALONE = (0.01, 0.04)
_DISTANCES = (1.0, 0.5, 2.0)
_USUAL = 0.2  # nats of evidence that each step away from the usual costs
_UNTOLD = 2.0  # and that noise costs beyond what values tell: it explains anything
# The structure is chosen anew with each of the first observations, then with each fifth more
_FEW, _MORE = 12, 1.2
_JUDGED = 60  # observations that a structure is judged by, the last ones


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParams:
    """Standard deviations of the parts of y, and the distance over which f changes.

    `noise` is that of each value beside its own: a machine with other work is steady within a
    trial and slower in the next. Who does not reckon with it believes in a wild f, of which any
    untried candidate may be the peak.
    """

    offset: float
    slope: float
    effects: float
    smooth: float
    alone: float
    distance: float
    noise: float


class Prediction(NamedTuple):
    """Mean and standard deviation of y of candidates."""

    mean: Numbers
    deviation: Numbers

    def take(self, which: Rows) -> Prediction:
        """Of some of them."""
        return Prediction(self.mean[which], self.deviation[which])


class Surrogate:
    """One quantity of fixed candidates, learned from ever more observations."""

    def __init__(
        self,
        features: Numbers,
        forecast: Numbers | None,
        offset: float,
        parts: Numbers | None = None,
        structure: KernelParams | None = None,
        noises: tuple[float, ...] = (0.0,),
    ) -> None:
        """Believes the forecast.

        Args:
            features: Of shape (candidates, features): places of candidates by their knobs, of
                which a distance of 1 is from one end of a knob to the other.
            forecast: Expected logarithms of shape (candidates,); None if there is no forecast.
            offset: Standard deviation of what all candidates have in common.
            parts: Of shape (candidates, coefficients): by how much a standard deviation of each
                of the forecast's coefficients moves each candidate.
            structure: In place of what evidence would choose.
            noises: Which values' untold noise may have, from the usual one up.
        """
        self._features = features.astype(np.float64)
        self._forecast = np.zeros(len(features)) if forecast is None else forecast
        self._told = forecast is not None
        self._centred = self._forecast - self._forecast.mean()
        self._effects = _main_effects(self._features)
        self._offset = offset
        self._parts = np.zeros((len(features), 0)) if parts is None else parts
        self._noises = noises
        self._given = structure is not None
        self._structure = structure  # as chosen last, from so many observations
        self._chosen_from = 0

    def learn(self, rows: Rows, seen: Observations, *, choose: bool = True) -> Learned:
        """What observations teach.

        Args:
            rows: The candidate of each observation; one may be seen several times.
            seen: The observations.
            choose: Whether the structure may be chosen anew: not by what was only dreamt.
        """
        more = len(rows) != self._chosen_from and len(rows) < _FEW
        more = more or len(rows) > _MORE * self._chosen_from
        if self._structure is None or (choose and more and not self._given):
            judged = slice(-_JUDGED, None)
            self._structure = self._chosen(rows[judged], seen.take(judged))
            self._chosen_from = len(rows)
        prior = self.covariance(self._structure, rows, rows)
        found = posterior(prior, self._forecast[rows], seen.noisier(self._structure.noise))
        return Learned(surrogate=self, structure=self._structure, rows=rows, posterior=found)

    def before(self, structure: KernelParams, rows: Rows) -> tuple[Numbers, Numbers]:
        """Mean and variance of y of candidates when nothing was seen."""
        variance = (
            structure.offset**2
            + (structure.slope * self._centred[rows]) ** 2
            + structure.effects**2 * (self._effects[rows] ** 2).sum(axis=1)
            + structure.smooth**2
            + structure.alone**2
            + (self._parts[rows] ** 2).sum(axis=1)
        )
        return self._forecast[rows], variance

    def _chosen(self, rows: Rows, seen: Observations) -> KernelParams:
        """The best structure: with each noise part by part, until no other value is better.

        By noise first, since a wild f and much noise explain the same, and neither is found from
        the other by changing one part.
        """
        choices = [
            _SLOPES if self._told else (0.0,),
            _EFFECTS,
            _SMOOTH,
            _ALONE,
            _DISTANCES,
        ]
        known: dict[tuple[int, ...], tuple[float, KernelParams]] = {}

        def judged(at: tuple[int, ...]) -> float:
            if at not in known:
                slope, effects, smooth, alone, distance, noise = (
                    values[place]
                    for values, place in zip((*choices, self._noises), at, strict=True)
                )
                structure = KernelParams(
                    offset=self._offset,
                    slope=slope,
                    effects=effects,
                    smooth=smooth,
                    alone=alone,
                    distance=distance,
                    noise=noise,
                )
                prior = self.covariance(structure, rows, rows)
                found = posterior(prior, self._forecast[rows], seen.noisier(noise))
                cost = _USUAL * sum(place > 0 for place in at[:-1]) + _UNTOLD * (at[-1] > 0)
                known[at] = found.log_evidence - cost, structure
            return known[at][0]

        for noise in range(len(self._noises)):
            best, before = (*(0 for _ in choices), noise), None
            judged(best)
            while best != before and len(rows):
                before = best
                for part, values in enumerate(choices):
                    neighbours = (
                        (*best[:part], place, *best[part + 1 :]) for place in range(len(values))
                    )
                    best = max(neighbours, key=judged)
        return max(known.values(), key=lambda found: found[0])[1]

    def covariance(self, structure: KernelParams, rows: Rows, others: Rows) -> Numbers:
        """Covariances of y without noise between candidates and others."""
        places, centred = self._features[rows], self._centred[rows]
        other = self._features[others]
        squared = (
            (places**2).sum(axis=1)[:, None] + (other**2).sum(axis=1)[None] - 2 * places @ other.T
        )
        apart = np.sqrt(np.maximum(squared, 0.0)) * (5**0.5 / structure.distance)
        smooth = structure.smooth**2 * (1 + apart + apart**2 / 3) * np.exp(-apart)
        same = structure.alone**2 * (rows[:, None] == others[None])
        common = structure.offset**2 + structure.slope**2 * np.outer(centred, self._centred[others])
        common += self._parts[rows] @ self._parts[others].T
        if structure.effects:
            common += structure.effects**2 * (self._effects[rows] @ self._effects[others].T)
        covariance: Numbers = common + smooth + same
        return covariance


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """What the observations of some candidates taught, to be told of any."""

    surrogate: Surrogate
    structure: KernelParams
    rows: Rows
    posterior: Posterior

    def of(self, rows: Rows) -> Prediction:
        """What is believed of candidates."""
        mean, variance = self.surrogate.before(self.structure, rows)
        covariance = self.surrogate.covariance(self.structure, rows, self.rows)
        left = variance - self.posterior.explained(covariance)
        return Prediction(
            mean=mean + self.posterior.mean(covariance),
            deviation=np.sqrt(np.maximum(left, 1e-10)),
        )


def _main_effects(features: Numbers) -> Numbers:
    """Columns of which each moves y by itself: places, and their squares where they have several.

    Centred, so that what all candidates have in common stays in the offset.
    """
    bent = [column**2 for column in features.T if len(np.unique(column)) > 2]
    columns = np.column_stack([features, *bent])
    centred: Numbers = columns - columns.mean(axis=0)
    return centred
