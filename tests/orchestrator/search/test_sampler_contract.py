"""`PlimsollSampler` against the contract suite of Optuna's samplers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from orchestrator.search.plimsoll_sampler import PlimsollSampler


@pytest.mark.thorough
class TestPlimsollSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: PlimsollSampler(seed=0)
