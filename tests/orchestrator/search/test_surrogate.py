"""What is believed of candidates that were not seen."""

from __future__ import annotations

import itertools

import numpy as np

from orchestrator.search.evidence import Sight, rates
from orchestrator.search.surrogate import Surrogate

# six knobs of two and three values
PLACES = np.array(
    list(
        itertools.product((0.0, 1.0), (0.0, 1.0), (0, 0.5, 1), (0, 0.5, 1), (0.0, 1.0), (0.0, 1.0))
    )
)


def test_what_a_forecast_misjudges_of_a_knob_is_learned_from_a_few_trials() -> None:
    """One technique is 1.8 times as fast as forecast, another slower by 40 %: eight trials tell.

    With a smooth function alone, errors of the other 136 are 0.24 in the mean.
    """
    errors = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        forecast = 0.3 * PLACES @ rng.normal(size=6)
        truth = forecast + 0.6 * PLACES[:, 0] - 0.5 * PLACES[:, 3]
        rows = rng.permutation(len(PLACES))[:8]
        sights = [Sight(row=int(row), log_rate=float(truth[row])) for row in rows]
        rest = np.setdiff1d(np.arange(len(PLACES)), rows)

        believed = Surrogate(PLACES, forecast, 1.0).learn(*rates(sights)).of(rest)

        errors.append(np.abs(believed.mean - truth[rest]).mean())
        assert (np.abs(believed.mean - truth[rest]) < 3 * believed.deviation).all()
    assert np.mean(errors) < 0.15
