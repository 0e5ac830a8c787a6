"""Predictions of the surrogate for unobserved candidates."""

import itertools

import numpy as np

from orchestrator.search.observations import Observation, rates
from orchestrator.search.surrogate import Surrogate

# six knobs of two and three values
PLACES = np.array(
    list(
        itertools.product((0.0, 1.0), (0.0, 1.0), (0, 0.5, 1), (0, 0.5, 1), (0.0, 1.0), (0.0, 1.0))
    )
)


def test_what_a_forecast_misjudges_of_a_knob_is_learned_from_a_few_trials() -> None:
    """One technique is 1.8 times as fast as forecast, another 40 % slower: eight trials show it.

    With only a smooth function, the mean error of the other 136 is 0.24.
    """
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        forecast = 0.3 * PLACES @ rng.normal(size=6)
        truth = forecast + 0.6 * PLACES[:, 0] - 0.5 * PLACES[:, 3]
        rows = rng.permutation(len(PLACES))[:8]
        observations = [Observation(row=int(row), log_rate=float(truth[row])) for row in rows]
        rest = np.setdiff1d(np.arange(len(PLACES)), rows)

        predicted = Surrogate(PLACES, forecast, 1.0).learn(*rates(observations)).of(rest)

        errors.append(np.abs(predicted.mean - truth[rest]).mean())
        assert (np.abs(predicted.mean - truth[rest]) < 3 * predicted.deviation).all()
    assert np.mean(errors) < 0.15
