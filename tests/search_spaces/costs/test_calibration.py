"""`calibration`: effect of measurements, and coverage of confidence intervals."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from search_spaces.costs.calibration import Z_95, Scales, probability_below, scaled_sum

RNG = np.random.default_rng(0)
TERMS = 4


def some_terms(count: int) -> np.ndarray:
    return RNG.lognormal(sigma=1.0, size=(count, TERMS))


def test_a_factor_is_learned_from_one_measurement() -> None:
    terms = np.ones((1, TERMS))
    learned = Scales.before(0.5, (1e-6,) * TERMS, 1e-3).learned(
        scaled_sum(terms), np.array([2.0 * TERMS])
    )

    assert learned.scaled(terms).sum() == pytest.approx(2.0 * TERMS, rel=1e-3)


def test_measurements_tell_terms_apart() -> None:
    """Plans that mostly communicate correct communication; others correct computation."""
    terms = np.array([[10.0, 0.1], [0.1, 10.0], [5.0, 5.0]])
    truth = np.array([10.0 * 1.5 + 0.1 * 0.7, 0.1 * 1.5 + 10.0 * 0.7, 5.0 * 1.5 + 5.0 * 0.7])
    scales = Scales.before(0.01, (1.0, 1.0), 1e-3).learned(scaled_sum(terms[:2]), truth[:2])

    assert scales.scaled(terms)[2].sum() == pytest.approx(truth[2], rel=0.01)


def test_what_hides_behind_a_term_learns_nothing() -> None:
    """A step that the host limits, four times as long as forecast, corrects launches alone."""
    launching, computing = 1.0, np.array([[0.2, 0.6], [0.5, 4.0]])

    def slopes(logarithms: np.ndarray) -> np.ndarray:
        scales = np.exp(logarithms)
        busy, waits = computing * scales[:2], launching * scales[2]
        hidden = busy.sum(axis=1, keepdims=True) < waits
        return np.hstack([np.where(hidden, 0.0, busy), np.where(hidden, waits, 0.05 * waits)])

    prior = Scales.before(0.2, (0.5, 0.5, 1.0), 0.03, apart=(2,))
    learned = prior.learned(lambda at: slopes(at)[:1], np.array([4.0]))
    scales = np.exp(learned.logarithms)

    assert scales == pytest.approx([1.0, 1.0, 4.0], rel=0.02)
    assert learned.covariance[1][1] == pytest.approx(0.25)  # as little is known of it as before
    assert slopes(learned.logarithms)[1].sum() == pytest.approx(4.5, rel=0.05)


def test_what_was_not_measured_teaches_nothing() -> None:
    scales = Scales.before(0.2, (0.3,) * TERMS, 0.03)

    assert scales.learned(scaled_sum(some_terms(2)), np.array([np.nan, 0.0])) == scales


@pytest.mark.parametrize("records", [0, 3])
def test_intervals_hold_what_they_promise(records: int) -> None:
    """Draws worlds from the calibration: 95 % of the plans are inside their interval."""
    before = replace(Scales.before(0.2, (0.3,) * TERMS, 0.05), misfit=0.05)
    inside = []
    for _ in range(400):
        terms = some_terms(records + 5)
        drawn = RNG.normal(0, [0.2, *([0.3] * TERMS)])
        truth = np.exp(drawn[0]) * (terms * np.exp(drawn[1:])).sum(axis=1)
        truth = truth * np.exp(RNG.normal(0, 0.05, len(truth)))
        scales = before.learned(scaled_sum(terms[:records]), truth[:records])
        expected = scales.scaled(terms).sum(axis=1)
        apart = np.abs(np.log(truth / expected))[records:]
        inside += (apart <= Z_95 * scales.deviation(scales.scaled(terms))[records:]).tolist()

    assert np.mean(inside) == pytest.approx(0.95, abs=0.025)


def test_chances_have_heavier_tails_than_a_log_normals() -> None:
    """Compares with scipy's Student distribution, scaled to the 95 % interval."""
    apart = np.array([0.0, 0.953, -6.93, Z_95, -Z_95])  # deviations
    chance = probability_below(np.exp(0.1 * apart), np.ones(5), np.full(5, 0.1))
    student = scipy.stats.t(df=3)

    assert chance == pytest.approx(student.cdf(apart * student.ppf(0.975) / Z_95))
    assert chance[3] - chance[4] == pytest.approx(0.95)
    assert 1e-4 < chance[2] < 0.01


def test_parts_are_the_slopes_times_what_is_uncertain() -> None:
    """Compares with finite differences, one scale at a time; the squares are the variance."""
    scales = Scales.before(0.2, (0.3,) * TERMS, 0.03)
    terms = some_terms(6)
    parts = scales.parts(terms)
    moved = [
        np.log((terms * np.where(np.arange(TERMS) == at, np.exp(1e-5 * 0.3), 1.0)).sum(axis=1))
        for at in range(TERMS)
    ]

    np.testing.assert_allclose(parts[:, 0], 0.2)
    for at in range(TERMS):
        slope = (moved[at] - np.log(terms.sum(axis=1))) / 1e-5
        np.testing.assert_allclose(parts[:, 1 + at], slope, rtol=1e-3)
    np.testing.assert_allclose((parts**2).sum(axis=1), scales.deviation(terms) ** 2)
