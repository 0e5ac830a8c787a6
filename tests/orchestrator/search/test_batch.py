"""A batch from one fit against candidates from one fit each."""

from __future__ import annotations

import numpy as np
import pytest

from orchestrator.search.acquisition import SearchObjective
from orchestrator.search.observations import Observation
from orchestrator.search.search import CandidatePool, Search, Suggestion
from tests.orchestrator.search.test_search import LOG_RATE, LOG_SHARE, PLACES, observation_of

RNG = np.random.default_rng(3)
ROWS = [0, 30, 78, 101, 140]
OFF = LOG_RATE + RNG.normal(0, 0.2, len(LOG_RATE))  # no two candidates alike
SECONDS = 10 + 20 * RNG.random(len(PLACES))


def options(aim: SearchObjective) -> CandidatePool:
    parts = 0.1 * RNG.random((len(PLACES), 3))
    return CandidatePool(
        features=PLACES,
        log_rate=OFF,
        log_share=LOG_SHARE,
        rate_parts=parts,
        share_parts=0.1 * parts,
        aim=aim,
    )


def one_by_one(
    search: Search,
    observations: list[Observation],
    free: np.ndarray,
    pending: list[int],
    count: int,
) -> list[Suggestion]:
    free, pending, choices = free.copy(), list(pending), list[Suggestion]()
    for _ in range(count):
        choices += search.several(1, observations, free, pending, SECONDS)
        free[choices[-1].row] = False
        pending.append(choices[-1].row)
    return choices


@pytest.mark.cases_by_default(4)
@pytest.mark.parametrize(
    "aim",
    [
        SearchObjective(),
        SearchObjective(of="room"),
        SearchObjective(price=np.linspace(0, 1, len(PLACES))),
    ],
)
@pytest.mark.parametrize("pending", [[], [5, 60]])
@pytest.mark.parametrize("tried", [0, len(ROWS)])
def test_they_are_those_of_one_fit_after_the_other(
    aim: SearchObjective, pending: list[int], tried: int
) -> None:
    told, observations = options(aim), [observation_of(row, noise=0.05) for row in ROWS[:tried]]
    free = np.ones(len(PLACES), dtype=bool)
    free[[*ROWS, *pending]] = False

    wanted = one_by_one(Search(told, 0), observations, free, pending, 12)
    found = Search(told, 0).several(12, observations, free, pending, SECONDS)

    assert [choice.row for choice in found] == [choice.row for choice in wanted]
    assert len({choice.row for choice in found}) == 12
    assert [choice.score for choice in found] == pytest.approx(
        [choice.score for choice in wanted], rel=1e-4
    )
