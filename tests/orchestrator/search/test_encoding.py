"""Candidates as points: distances follow the distributions of the knobs."""

import numpy as np
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from orchestrator.search.encoding import feature_columns

SPACE = {
    "stage": CategoricalDistribution((0, 1, 3)),
    "batch": IntDistribution(1, 64, log=True),
    "ratio": FloatDistribution(0.0, 1.0, step=0.5),
}


def test_points_are_as_far_apart_as_their_values() -> None:
    values = {"stage": [0, 0, 0, 3], "batch": [1, 8, 64, 1], "ratio": [0.0] * 4}
    columns = [column for name in SPACE for column in feature_columns(SPACE[name], values[name])]
    one, double, most, other = np.stack(columns, axis=1)

    assert np.linalg.norm(double - one) == pytest.approx(0.5)  # half the way in powers
    assert np.linalg.norm(most - one) == pytest.approx(1.0)
    assert np.linalg.norm(other - one) == pytest.approx(1.0)
