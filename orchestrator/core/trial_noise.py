"""Noise between trials of the same plan: from one to the next, and slowly with the machine.

    log rate of a trial = mean of its plan + drift(time) + noise

A shared machine is slower for minutes at a time, so that the difference of plans that were measured
in turn is known better than either speed. The drift is a stationary process whose correlation falls
with the time between two trials (Ornstein-Uhlenbeck). Means follow by generalized least squares,
the size of the drift by restricted maximum likelihood (Patterson and Thompson, Biometrika 58(3),
1971) on a small grid.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_PRIOR_WEIGHT = 1  # observations that the prior deviation counts as
_DRIFTS = (0.3, 0.5, 0.7, 0.85)
_SPANS = (1.5, 4.0, 12.0)  # typical times between two trials, after which drift is forgotten
_NOISY = 0.02
_PENALTY = 0.5  # nats for any drift, which few trials would explain anything by


@dataclass(frozen=True, slots=True)
class TrialNoise:
    """Noise of the logarithm of a trial's rate.

    Attributes:
        deviation: Standard deviation between trials of a plan that lie far apart in time.
        degrees: Its degrees of freedom; 0 if no plan was measured twice.
        drift: Share of the variance that trials at the same time have in common.
        seconds: Time in which the correlation of that share falls to 1 / e.
    """

    deviation: float
    degrees: int = 0
    drift: float = 0.0
    seconds: float = 1.0

    @property
    def is_noisy(self) -> bool:
        """Returns True if one trial cannot tell plans apart that differ by a few percent."""
        return self.deviation > _NOISY

    @property
    def quantile(self) -> float:
        """Standard deviations from a mean to the end of its 95 % interval."""
        if not self.degrees:
            return 1.96
        from scipy.special import stdtrit  # commands that need none start sooner

        return float(stdtrit(_PRIOR_WEIGHT + self.degrees, 0.975))


def fit(
    values: Numbers, plans: NDArray[np.intp], at: Numbers, prior: float
) -> tuple[TrialNoise, Numbers, Numbers]:
    """Fits noise and means of plans to trials; at least one plan must have two.

    Args:
        values: Logarithms of the rates, of shape (trials,).
        plans: The plan of each, from 0.
        at: The time of each, in seconds.
        prior: Deviation before any trial.

    Returns:
        The noise, the means, and the covariance of their errors, of shape (plans, plans).
    """
    members = np.equal.outer(plans, np.arange(plans.max() + 1)).astype(np.float64)
    apart = np.abs(np.subtract.outer(at, at))
    usual = max(float(np.median(np.diff(np.sort(at)))), 1e-3)
    candidates = [(0.0, usual), *((drift, usual * span) for drift in _DRIFTS for span in _SPANS)]
    degrees = len(values) - members.shape[1]
    weight = _PRIOR_WEIGHT + degrees
    found = []
    for drift, seconds in candidates:
        correlation = drift * np.exp(-apart / seconds)
        np.fill_diagonal(correlation, 1.0)
        root = np.linalg.cholesky(correlation)
        columns = np.linalg.solve(root, np.column_stack([members, values]))
        design, target = columns[:, :-1], columns[:, -1]
        information = design.T @ design
        means = np.linalg.solve(information, design.T @ target)
        squares = float(((target - design @ means) ** 2).sum()) + _PRIOR_WEIGHT * prior**2
        evidence = -0.5 * (weight * np.log(squares) + np.linalg.slogdet(information)[1])
        evidence -= np.log(np.diag(root)).sum() + _PENALTY * (drift > 0)
        noise = TrialNoise((squares / weight) ** 0.5, degrees, drift, seconds)
        found.append((evidence, noise, means, squares / weight * np.linalg.inv(information)))
    return max(found, key=lambda one: one[0])[1:]
