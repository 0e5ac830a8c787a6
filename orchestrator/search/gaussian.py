"""Gaussian-process regression on values and on bounds.

y = mean + f + noise, f ~ N(0, K). An observation is a value with a noise of its own, or a bound:
y lies above it (a plan that ran out of memory needed at least that much) or below it. Expectation
propagation turns bounds into values: each bound becomes the normal site whose moments, together
with all other observations, are those of the truncated normal (Rasmussen & Williams 2006, Gaussian
Processes for Machine Learning, section 3.6).
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import log_ndtr

Numbers = NDArray[np.float64]

_ITERATIONS = 12  # of expectation propagation
_DAMPING = 0.8  # all sites are updated at once, so that full steps would overshoot
_MIN_PRECISION, _MAX_PRECISION = 1e-8, 1e8  # of the site that replaces a bound
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """Observed values and bounds, each array of shape (observations,).

    `side` is 0 for a value, 1 for a lower bound and -1 for an upper bound. `noise` is a standard
    deviation. `together` is the covariance of errors that observations share, None without any.
    """

    value: Numbers
    noise: Numbers
    side: NDArray[np.int64]
    together: Numbers | None = None

    def __len__(self) -> int:
        return len(self.value)

    def noisier(self, by: float) -> Self:
        """Returns the observations with this noise added to values; bounds stay as they are."""
        if not by:
            return self
        return replace(self, noise=np.where(self.side == 0, np.hypot(self.noise, by), self.noise))

    def take(self, which: slice) -> Self:
        """Returns a slice of the observations."""
        return type(self)(
            value=self.value[which],
            noise=self.noise[which],
            side=self.side[which],
            together=None if self.together is None else self.together[which, which],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """Posterior of f, in a form that predicts at any point.

    `weights` gives the mean and `root`, a Cholesky factor, the variance, each from the covariance
    with the observed points. `log_evidence` is the log marginal likelihood (approximate if there
    are bounds).
    """

    weights: Numbers
    root: Numbers  # lower triangular, of shape (observations, observations)
    log_evidence: float

    def mean(self, covariance: Numbers) -> Numbers:
        """Returns the posterior mean less the prior mean.

        Args:
            covariance: With the observed points, of shape (points, observations).
        """
        return covariance @ self.weights

    def whitened(self, covariance: Numbers) -> Numbers:
        """Returns the whitened covariance, of shape (observations, points).

        The square of a column's length is what observations take from a point's variance.
        """
        if not len(self.weights):
            return np.zeros((0, len(covariance)))
        return solve_triangular(self.root, covariance.T, lower=True, check_finite=False)


def posterior(prior: Numbers, mean: Numbers, seen: Observations) -> Posterior:
    """Returns the posterior of f.

    Args:
        prior: Covariance of f at the observed points, of shape (observations, observations).
        mean: The prior mean there.
        seen: The observations.
    """
    if not len(seen):
        return Posterior(weights=np.zeros(0), root=np.zeros((0, 0)), log_evidence=0.0)
    target, variance = seen.value - mean, seen.noise**2
    if seen.together is not None:
        prior = prior + seen.together
    bounded = np.flatnonzero(seen.side)
    correction = 0.0
    if len(bounded):
        target, variance, correction = _with_bounds(prior, target, variance, seen.side, bounded)
    root = cho_factor(prior + np.diag(variance), lower=True, check_finite=False)
    weights: Numbers = cho_solve(root, target, check_finite=False)
    lower = np.tril(root[0])
    evidence = -0.5 * float(target @ weights) - float(np.log(np.diag(lower)).sum())
    return Posterior(
        weights=weights,
        root=lower,
        log_evidence=evidence - len(target) * _HALF_LOG_2PI + correction,
    )


def _with_bounds(
    prior: Numbers,
    target: Numbers,
    variance: Numbers,
    side: NDArray[np.int64],
    bounded: NDArray[np.intp],
) -> tuple[Numbers, Numbers, float]:
    """Replaces bounds by normal sites.

    Returns:
        Targets and variances of all observations, and the correction of the log evidence.
    """
    target, variance = target.copy(), variance.copy()
    limit, sign, noise = target[bounded], side[bounded].astype(float), variance[bounded]
    mean, prior = _condition_on_values(prior, target, variance, np.flatnonzero(side == 0), bounded)
    precision = np.full(len(bounded), _MIN_PRECISION)
    shift = np.zeros(len(bounded))  # precision times value
    cavity = cavity_variance = np.zeros(0)
    for _ in range(_ITERATIONS):
        gain = prior @ np.linalg.inv(prior + np.diag(1 / precision))
        center = mean + gain @ (shift / precision - mean)
        width = np.maximum(np.diag(prior) - np.einsum("ij,ji->i", gain, prior), 1e-12)
        cavity_precision = np.maximum(1 / width - precision, 1e-9)  # without the site itself
        cavity = (center / width - shift) / cavity_precision
        cavity_variance = 1 / cavity_precision
        matched, matched_width = _truncated(cavity, cavity_variance, limit, sign, noise)
        new_precision = np.clip(
            1 / matched_width - cavity_precision, _MIN_PRECISION, _MAX_PRECISION
        )
        new_shift = matched / matched_width - cavity * cavity_precision
        new_shift = np.where(new_precision > _MIN_PRECISION, new_shift, 0.0)
        precision = precision + _DAMPING * (new_precision - precision)
        shift = shift + _DAMPING * (new_shift - shift)
    site, site_variance = shift / precision, 1 / precision
    target[bounded], variance[bounded] = site, site_variance
    # The evidence gets the likelihood of each bound in place of that of its site
    bound_likelihood = log_ndtr(sign * (cavity - limit) / np.sqrt(cavity_variance + noise))
    total = cavity_variance + site_variance
    site_likelihood = -0.5 * (site - cavity) ** 2 / total - 0.5 * np.log(total) - _HALF_LOG_2PI
    return target, variance, float((bound_likelihood - site_likelihood).sum())


def _condition_on_values(
    prior: Numbers,
    target: Numbers,
    variance: Numbers,
    valued: NDArray[np.intp],
    bounded: NDArray[np.intp],
) -> tuple[Numbers, Numbers]:
    """Returns mean and covariance of f at the bounds, conditioned on the values alone."""
    between = prior[np.ix_(valued, bounded)]
    inner = prior[np.ix_(bounded, bounded)]
    if not len(valued):
        return np.zeros(len(bounded)), inner
    root = cho_factor(prior[np.ix_(valued, valued)] + np.diag(variance[valued]), lower=True)
    solved = cho_solve(root, between)
    return solved.T @ target[valued], inner - between.T @ solved


def _truncated(
    mean: Numbers, variance: Numbers, limit: Numbers, sign: Numbers, noise: Numbers
) -> tuple[Numbers, Numbers]:
    """Returns mean and variance of normals whose noisy observation lies beyond a limit."""
    scale = np.sqrt(variance + noise)
    standardized = sign * (mean - limit) / scale
    ratio = np.exp(-0.5 * standardized**2 - _HALF_LOG_2PI - log_ndtr(standardized))
    truncated_mean = mean + sign * variance / scale * ratio
    truncated_variance = variance - variance**2 / scale**2 * ratio * (standardized + ratio)
    return truncated_mean, np.maximum(truncated_variance, 1e-12)
