"""Surrogate model: a Gaussian process over all candidates whose prior mean is the forecast.

The logarithm of a quantity is modelled as

    y = x + sum_k c_k s_k + a + b (x - mean of x) + e(knobs) + f(knobs) + g + noise

- x is the forecast, and c_k corrects its k-th coefficient, which moves it by s_k;
- offset a and slope b say how far the forecast can be trusted;
- e is the main effect of each knob, and f a smooth function of all knobs (Matern 5/2, Rasmussen &
  Williams 2006, section 4.2);
- g is the nugget, an independent part of each plan.

All parts are normal, so the posterior has a closed form. The scales of b, e, f and g, the length
scale of f, and the noise beyond each value's own are chosen by marginal likelihood on a small grid,
with a penalty for unusual values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from orchestrator.search.gaussian import Numbers, Observations, Posterior, posterior

Rows = NDArray[np.intp]
# Grids of kernel parameters; the first entry of each is usual with a good forecast
_SLOPES = (0.1, 1.0)
_EFFECTS = (0.0, 0.2, 0.6)
_SMOOTH = (0.1, 0.03, 0.3, 1.0)
_NUGGETS = (0.01, 0.04)
_LENGTH_SCALES = (1.0, 0.5, 2.0)
_UNUSUAL_PENALTY = 0.2  # nats of evidence for each parameter that is not the usual one
_NOISE_PENALTY = 2.0  # nats for extra noise, which would explain anything
# Kernel parameters are chosen again at each of the first observations, then at each 20 % more
_FIRST, _GROWTH = 12, 1.2
_RECENT = 60  # latest observations that kernel parameters are chosen by


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParams:
    """Standard deviations of the parts of y, and the length scale of f.

    `alone` is the nugget. `noise` adds to each value's own: on a machine with other work, trials
    are steady within themselves and differ from one to the next. Without it the process fits that
    noise, and any untried candidate can look optimal.
    """

    offset: float
    slope: float
    effects: float
    smooth: float
    alone: float
    distance: float
    noise: float


class Prediction(NamedTuple):
    """Mean and standard deviation of y for some candidates."""

    mean: Numbers
    deviation: Numbers


class Surrogate:
    """Model of one quantity over a fixed candidate pool, refitted as observations arrive."""

    def __init__(
        self,
        features: Numbers,
        forecast: Numbers | None,
        offset: float,
        parts: Numbers | None = None,
        structure: KernelParams | None = None,
        noises: tuple[float, ...] = (0.0,),
        nuggets: tuple[float, ...] = _NUGGETS,
    ) -> None:
        """Makes the model; before any observation it predicts the forecast.

        Args:
            features: Points of shape (candidates, features), of which a distance of 1 is from one
                end of a knob to the other.
            forecast: Prior mean of the logarithms, of shape (candidates,); 0 if None.
            offset: Standard deviation of a, which all candidates share.
            parts: How far a standard deviation of each of the forecast's coefficients moves each
                candidate, of shape (candidates, coefficients).
            structure: Kernel parameters to use; chosen by marginal likelihood if None.
            noises: Grid of the extra noise of values, the usual one first.
            nuggets: Grid of the independent part of each plan.
        """
        self._features = features.astype(np.float64)
        self._forecast = np.zeros(len(features)) if forecast is None else forecast
        self._has_forecast = forecast is not None
        self._centred = self._forecast - self._forecast.mean()
        self._effects = _main_effects(self._features)
        self._offset = offset
        self._parts = np.zeros((len(features), 0)) if parts is None else parts
        self._noises = noises
        self._nuggets = nuggets
        self._fixed = structure is not None
        self._kernel = structure
        self._chosen_at = 0  # number of observations when the kernel was chosen

    def learn(self, rows: Rows, seen: Observations, *, choose: bool = True) -> Learned:
        """Fits the model.

        Args:
            rows: The candidate of each observation; repetitions are allowed.
            seen: The observations.
            choose: Allows new kernel parameters; pass False for fantasies, which are no evidence.
        """
        due = len(rows) != self._chosen_at and len(rows) < _FIRST
        due = due or len(rows) > _GROWTH * self._chosen_at
        if self._kernel is None or (choose and due and not self._fixed):
            recent = slice(-_RECENT, None)
            self._kernel = self._best_kernel(rows[recent], seen.take(recent))
            self._chosen_at = len(rows)
        prior = self.covariance(self._kernel, rows, rows)
        fitted = posterior(prior, self._forecast[rows], seen.noisier(self._kernel.noise))
        return Learned(surrogate=self, structure=self._kernel, rows=rows, posterior=fitted)

    def before(self, structure: KernelParams, rows: Rows) -> tuple[Numbers, Numbers]:
        """Returns prior mean and variance of y."""
        variance = (
            structure.offset**2
            + (structure.slope * self._centred[rows]) ** 2
            + structure.effects**2 * (self._effects[rows] ** 2).sum(axis=1)
            + structure.smooth**2
            + structure.alone**2
            + (self._parts[rows] ** 2).sum(axis=1)
        )
        return self._forecast[rows], variance

    def _best_kernel(self, rows: Rows, observations: Observations) -> KernelParams:
        """Chooses kernel parameters by coordinate ascent of the penalized evidence.

        It starts once from each noise: a rough f and strong noise explain the same observations,
        and changing one parameter at a time does not lead from one to the other.
        """
        grids = [
            _SLOPES if self._has_forecast else (0.0,),
            _EFFECTS,
            _SMOOTH,
            self._nuggets,
            _LENGTH_SCALES,
        ]
        scores: dict[tuple[int, ...], tuple[float, KernelParams]] = {}

        def evidence(point: tuple[int, ...]) -> float:
            if point not in scores:
                slope, effects, smooth, nugget, length_scale, noise = (
                    grid[index] for grid, index in zip((*grids, self._noises), point, strict=True)
                )
                kernel = KernelParams(
                    offset=self._offset,
                    slope=slope,
                    effects=effects,
                    smooth=smooth,
                    alone=nugget,
                    distance=length_scale,
                    noise=noise,
                )
                prior = self.covariance(kernel, rows, rows)
                fitted = posterior(prior, self._forecast[rows], observations.noisier(noise))
                unusual = sum(index > 0 for index in point[:-1])
                penalty = _UNUSUAL_PENALTY * unusual + _NOISE_PENALTY * (point[-1] > 0)
                scores[point] = fitted.log_evidence - penalty, kernel
            return scores[point][0]

        for noise in range(len(self._noises)):
            best, previous = (*(0 for _ in grids), noise), None
            evidence(best)
            while best != previous and len(rows):
                previous = best
                for axis, grid in enumerate(grids):
                    line = ((*best[:axis], index, *best[axis + 1 :]) for index in range(len(grid)))
                    best = max(line, key=evidence)
        return max(scores.values(), key=lambda scored: scored[0])[1]

    def covariance(self, structure: KernelParams, rows: Rows, others: Rows) -> Numbers:
        """Returns the prior covariance of y without noise, of shape (rows, others)."""
        points = self._features[rows]
        other_points = self._features[others]
        squared = (
            (points**2).sum(axis=1)[:, None]
            + (other_points**2).sum(axis=1)[None]
            - 2 * points @ other_points.T
        )
        # in place: most of an ask's time goes here, and half of that into memory
        distance = np.maximum(squared, 0.0, out=squared)
        np.sqrt(distance, out=distance)
        distance *= 5**0.5 / structure.distance
        covariance: Numbers = distance / 3
        covariance += 1
        covariance *= distance
        covariance += 1
        np.negative(distance, out=distance)
        covariance *= np.exp(distance, out=distance)
        covariance *= structure.smooth**2
        covariance += self._linear(structure, rows) @ self._linear(structure, others).T
        same = rows[:, None] == others[None]
        np.add(covariance, structure.alone**2, out=covariance, where=same)
        return covariance

    def _linear(self, structure: KernelParams, rows: Rows) -> Numbers:
        """Returns the features, of shape (rows, features), of which y is linear a priori."""
        columns = [
            np.full((len(rows), 1), structure.offset),
            structure.slope * self._centred[rows, None],
            self._parts[rows],
        ]
        if structure.effects:
            columns.append(structure.effects * self._effects[rows])
        return np.hstack(columns)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Learned:
    """A surrogate fitted to observations; it predicts any candidate."""

    surrogate: Surrogate
    structure: KernelParams
    rows: Rows
    posterior: Posterior

    def of(self, rows: Rows) -> Prediction:
        """Returns the posterior mean and standard deviation of the candidates in `rows`."""
        mean, variance = self.surrogate.before(self.structure, rows)
        covariance = self.surrogate.covariance(self.structure, rows, self.rows)
        whitened = self.posterior.whitened(covariance)
        remaining = variance - np.einsum("ij,ij->j", whitened, whitened)
        return Prediction(
            mean=mean + self.posterior.mean(covariance),
            deviation=np.sqrt(np.maximum(remaining, 1e-10)),
        )


def _main_effects(features: Numbers) -> Numbers:
    """Returns the columns of main effects: features, and squares of those with over two values.

    Columns are centred, so that what all candidates share stays in the offset.
    """
    squares = [column**2 for column in features.T if len(np.unique(column)) > 2]
    columns = np.column_stack([features, *squares])
    return columns - columns.mean(axis=0)
