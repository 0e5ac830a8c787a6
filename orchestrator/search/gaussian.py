"""Gaussian-process regression on observations of which some are only bounds.

y = mean + f + noise, f ~ N(0, K). An observation is a value with a noise of its own, or a bound:
the value lies above it (a plan that ran out of memory wanted at least so much) or below. Bounds are
turned into values by expectation propagation: each is the normal distribution that, beside all
others, has the moments of the truncated one (Rasmussen & Williams 2006, Gaussian Processes for
Machine Learning, section 3.6).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import log_ndtr

Numbers = NDArray[np.float64]

_SWEEPS = 12
_STEP = 0.8  # of a sweep: all sites move at once, and overshoot if they move all the way
_WEAKEST, _STRONGEST = 1e-8, 1e8  # precisions of a bound's stand-in
_HALF_LOG_2PI = 0.5 * np.log(2 * np.pi)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """What was seen, each of shape (observations,).

    `side` is 0 for a value, 1 for a lower bound and -1 for an upper one; `noise` a standard
    deviation. `together` is the covariance of what several are off by at once, None if nothing is.
    """

    value: Numbers
    noise: Numbers
    side: NDArray[np.int64]
    together: Numbers | None = None

    def __len__(self) -> int:
        return len(self.value)

    def noisier(self, by: float) -> Self:
        """With so much more noise in each value; what is a bound stays as sharp as it is."""
        if not by:
            return self
        return replace(self, noise=np.where(self.side == 0, np.hypot(self.noise, by), self.noise))

    def take(self, which: slice) -> Self:
        """Some of them."""
        return type(self)(
            value=self.value[which],
            noise=self.noise[which],
            side=self.side[which],
            together=None if self.together is None else self.together[which, which],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Posterior:
    """What is believed of f after the observations.

    `weights` times the covariance with the observed is what their sight adds to the mean; the
    rows of `root` against it what it takes from the variance. `log_evidence` is the logarithm of
    the marginal likelihood (approximate where there are bounds).
    """

    weights: Numbers
    root: Numbers  # lower triangular, of shape (observations, observations)
    log_evidence: float

    def mean(self, covariance: Numbers) -> Numbers:
        """What is added to the prior mean, for columns of covariances with the observed.

        Args:
            covariance: Of shape (points, observations).
        """
        added: Numbers = covariance @ self.weights
        return added

    def explained(self, covariance: Numbers) -> Numbers:
        """The variance that the observations take away, point by point."""
        part = self.whitened(covariance)
        taken: Numbers = np.einsum("ij,ij->j", part, part)
        return taken

    def whitened(self, covariance: Numbers) -> Numbers:
        """Of shape (observations, points): products of columns are what two points lose at once."""
        if not len(self.weights):
            return np.zeros((0, len(covariance)))
        part: Numbers = solve_triangular(self.root, covariance.T, lower=True, check_finite=False)
        return part


def posterior(prior: Numbers, mean: Numbers, seen: Observations) -> Posterior:
    """The posterior of f.

    Args:
        prior: Covariance of f at the observed points, of shape (observations, observations).
        mean: The prior mean there.
        seen: What was observed.
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
    """Values and variances that stand for the bounds, and what they add to the evidence."""
    target, variance = target.copy(), variance.copy()
    limit, sign, noise = target[bounded], side[bounded].astype(float), variance[bounded]
    before, prior = _given_values(prior, target, variance, np.flatnonzero(side == 0), bounded)
    precision = np.full(len(bounded), _WEAKEST)
    shift = np.zeros(len(bounded))  # precision times value
    cavity = spread = np.zeros(0)
    for _ in range(_SWEEPS):
        gain = prior @ np.linalg.inv(prior + np.diag(1 / precision))
        centre = before + gain @ (shift / precision - before)
        width = np.maximum(np.diag(prior) - np.einsum("ij,ji->i", gain, prior), 1e-12)
        left = np.maximum(1 / width - precision, 1e-9)  # of all the others
        cavity, spread = (centre / width - shift) / left, 1 / left
        matched, matched_width = _truncated(cavity, spread, limit, sign, noise)
        fresh = np.clip(1 / matched_width - left, _WEAKEST, _STRONGEST)
        fresh_shift = matched / matched_width - cavity * left
        fresh_shift = np.where(fresh > _WEAKEST, fresh_shift, 0.0)
        precision = precision + _STEP * (fresh - precision)
        shift = shift + _STEP * (fresh_shift - shift)
    value, stands = shift / precision, 1 / precision
    target[bounded], variance[bounded] = value, stands
    # the likelihood of a bound, over that of the value that stands for it
    true = log_ndtr(sign * (cavity - limit) / np.sqrt(spread + noise))
    both = spread + stands
    instead = -0.5 * (value - cavity) ** 2 / both - 0.5 * np.log(both) - _HALF_LOG_2PI
    return target, variance, float((true - instead).sum())


def _given_values(
    prior: Numbers,
    target: Numbers,
    variance: Numbers,
    valued: NDArray[np.intp],
    bounded: NDArray[np.intp],
) -> tuple[Numbers, Numbers]:
    """Mean and covariance of f at the bounds, given the values alone."""
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
    """Mean and variance of normal variables of which a noisy sight lies beyond a limit."""
    scale = np.sqrt(variance + noise)
    place = sign * (mean - limit) / scale
    ratio = np.exp(-0.5 * place**2 - _HALF_LOG_2PI - log_ndtr(place))
    moved = mean + sign * variance / scale * ratio
    left = variance - variance**2 / scale**2 * ratio * (place + ratio)
    return moved, np.maximum(left, 1e-12)
