"""Gaussian-process regression on values and bounds, against scikit-learn and integrals."""

import numpy as np
import pytest
from scipy import integrate, stats
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern

from orchestrator.search.gaussian import Numbers, Observations, Posterior, posterior

RNG = np.random.default_rng(0)


def explained(found: Posterior, covariance: Numbers) -> Numbers:
    """Returns what the observations take from the variance at each point."""
    return (found.whitened(covariance) ** 2).sum(axis=0)


def seen(value: list[float], noise: float, side: list[int]) -> Observations:
    return Observations(
        value=np.array(value), noise=np.full(len(value), noise), side=np.array(side)
    )


def test_values_alone_are_what_scikit_learn_makes_of_them() -> None:
    points, places = RNG.normal(size=(12, 3)), RNG.normal(size=(40, 3))
    truth = np.sin(points.sum(axis=1))
    kernel = Matern(length_scale=1.3, nu=2.5)
    reference = GaussianProcessRegressor(kernel, alpha=0.1**2, optimizer=None).fit(points, truth)
    expected, deviation = reference.predict(places, return_std=True)

    found = posterior(kernel(points), np.zeros(12), seen(truth.tolist(), 0.1, [0] * 12))
    covariance = kernel(places, points)

    assert found.mean(covariance) == pytest.approx(expected, abs=1e-9)
    assert np.sqrt(1 - explained(found, covariance)) == pytest.approx(deviation, abs=1e-9)
    assert found.log_evidence == pytest.approx(reference.log_marginal_likelihood_value_)


@pytest.mark.parametrize(("limit", "side"), [(0.5, 1), (-1.0, 1), (2.0, 1), (0.3, -1), (-1.5, -1)])
def test_one_bound_gives_the_moments_of_the_truncated_normal(limit: float, side: int) -> None:
    """f ~ N(0.2, 1), above a limit with noise 0.1; mean, variance and evidence by integration."""

    def density(f: float) -> float:
        return float(stats.norm.pdf(f, 0.2) * stats.norm.cdf(side * (f - limit) / 0.1))

    chance = integrate.quad(density, -8, 8, points=[limit])[0]
    mean = integrate.quad(lambda f: f * density(f), -8, 8, points=[limit])[0] / chance
    square = integrate.quad(lambda f: f * f * density(f), -8, 8, points=[limit])[0] / chance

    found = posterior(np.eye(1), np.array([0.2]), seen([limit], 0.1, [side]))

    assert 0.2 + found.mean(np.eye(1))[0] == pytest.approx(mean, abs=1e-3)
    assert 1 - explained(found, np.eye(1))[0] == pytest.approx(square - mean**2, rel=1e-2)
    assert found.log_evidence == pytest.approx(np.log(chance), abs=1e-3)


def test_bounds_and_values_together_are_what_draws_say() -> None:
    """Three correlated unknowns: one measured, one above a limit, one below another."""
    prior = np.array([[1.0, 0.7, 0.4], [0.7, 1.0, 0.5], [0.4, 0.5, 1.0]])
    draws = RNG.multivariate_normal(np.zeros(3), prior, 2_000_000)
    noisy = draws[:, 1] + RNG.normal(0, 0.05, len(draws))
    kept = draws[(noisy > 0.8) & (draws[:, 2] + RNG.normal(0, 0.05, len(draws)) < 0.1)]
    weight = stats.norm.pdf(0.6, kept[:, 0], 0.05)
    mean = np.average(kept, axis=0, weights=weight)
    variance = np.average((kept - mean) ** 2, axis=0, weights=weight)

    found = posterior(prior, np.zeros(3), seen([0.6, 0.8, 0.1], 0.05, [0, 1, -1]))

    assert found.mean(prior) == pytest.approx(mean, abs=0.02)
    assert 1 - explained(found, prior) == pytest.approx(variance, rel=0.1, abs=0.002)
