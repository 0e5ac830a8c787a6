"""Trials as Optuna's samplers see them."""

import pytest
from optuna.samplers import RandomSampler

from benchmarks.search.competitors.of_optuna import OfOptuna
from benchmarks.search.surfaces import Trial
from orchestrator.search.observations import CONSTRAINT
from tests.benchmarks.search.toys import order_of, toy_surface


def test_memory_is_a_graded_constraint() -> None:
    surface = toy_surface([{"micro_batch": float(at)} for at in range(1, 6)], [1.0] * 5)
    competitor = OfOptuna(surface, 0, RandomSampler(seed=0))
    for row, (rate, share) in enumerate(
        [(5.0, -0.5), (3.0, None), (None, 0.2), (None, None), (None, 0.0)]
    ):
        competitor.tell(row, Trial(rate=rate, log_share=share, seconds=1.0))
    trials = competitor._study.get_trials()
    excess = [trial.constraints[CONSTRAINT] for trial in trials]

    assert excess == pytest.approx([-0.3935, -0.1, 0.2214, 0.1, 0.0], abs=1e-4)
    assert excess[-1] > 0
    assert [trial.value for trial in trials] == [5.0, 3.0, 3.0, 3.0, 3.0]


def test_the_nearest_free_candidate_is_taken() -> None:
    candidates = [
        {"micro_batch": float(at), "ckpt": ckpt} for at in (1, 2, 4) for ckpt in ("full", "none")
    ]
    surface = toy_surface(candidates, [1.0] * 6)
    competitor = OfOptuna(surface, 0, RandomSampler(seed=0))
    near = competitor._distances({"micro_batch": 3.9, "ckpt": "none"})

    assert near.argmin() == 5
    assert near[4] == pytest.approx(1 + near[5])
    assert len(order_of(surface, competitor, 6)) == 6
