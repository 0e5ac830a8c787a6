"""The search on synthetic surfaces with a known optimum."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from orchestrator.search.acquisition import SearchObjective
from orchestrator.search.observations import Observation, rates, shares
from orchestrator.search.search import REGRET_WIDENING, CandidatePool, Search
from orchestrator.search.surrogate import Surrogate

# two knobs of twelve steps: speed grows with both, memory too
PLACES = np.array(list(itertools.product(np.linspace(0, 1, 12), repeat=2)))
LOG_RATE = PLACES @ np.array([0.8, 0.3]) - 1.2 * (PLACES[:, 0] - 0.6) ** 2
LOG_SHARE = PLACES @ np.array([1.0, 0.9]) - 1.1  # a third of the candidates run out
RAN_OUT = LOG_SHARE > 0
BEST = float(LOG_RATE[~RAN_OUT].max())
SEEDS = range(5)


def observation_of(row: int, *, noise: float = 0.0) -> Observation:
    if RAN_OUT[row]:
        return Observation(row=row, log_share=0.0, ran_out=True)
    return Observation(
        row=row, log_rate=float(LOG_RATE[row]) + noise, log_share=float(LOG_SHARE[row])
    )


def searched(options: CandidatePool, seed: int, trials: int) -> list[int]:
    search, observations, rows = Search(options, seed), list[Observation](), list[int]()
    free = np.ones(len(PLACES), dtype=bool)
    for _ in range(trials):
        row = search.choose(observations, free).row
        assert free[row]
        free[row] = False
        rows.append(row)
        observations.append(observation_of(row))
    return rows


def trials_to_best(rows: list[int], within: float = 0.02) -> int:
    near = [not RAN_OUT[row] and LOG_RATE[row] >= BEST - within for row in rows]
    return near.index(True) + 1 if any(near) else len(rows) + 1


def told(log_rate: np.ndarray | None, log_share: np.ndarray | None) -> CandidatePool:
    return CandidatePool(features=PLACES, log_rate=log_rate, log_share=log_share)


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_true_forecast_needs_three_trials_and_none_runs_out(seed: int) -> None:
    """The first trial surely fits; it reduces uncertainty, so the next ones approach the limit."""
    rows = searched(told(LOG_RATE, LOG_SHARE), seed, 3)

    assert trials_to_best(rows) <= 3
    assert not RAN_OUT[rows].any()


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_forecast_a_dozen_trials_are_enough(seed: int) -> None:
    """Random search needs 27 in the median: 5 of 144 candidates are that close."""
    assert trials_to_best(searched(told(None, None), seed, 14)) <= 14


@pytest.mark.thorough
@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_beats_a_forecast_that_is_wrong(seed: int) -> None:
    rng = np.random.default_rng(seed)
    wrong = told(rng.permutation(LOG_RATE), LOG_SHARE + np.log(1.3) * rng.choice([-1, 1]))

    assert trials_to_best(searched(wrong, seed, 25)) <= 25


@pytest.mark.parametrize("over", [-0.6, 0.1, 0.9])
def test_predictions_of_memory_have_the_tails_of_their_errors(over: float) -> None:
    """P(fits) without observations follows Student's t with 4 degrees of freedom."""
    share = np.full(len(PLACES), over)
    known = Surrogate(PLACES, share, 0.3).learn(*shares([])).of(np.array([0]))
    chance = stats.t(df=4).cdf(-over / known.deviation[0])

    choice = Search(told(LOG_RATE, share)).choose([], np.ones(len(PLACES), dtype=bool))

    assert choice.fits == pytest.approx(chance)


def test_a_lucky_measurement_is_not_taken_for_the_best() -> None:
    """Noise of 0.3; one reading is 0.8 too high, unlike its neighbours and forecasts."""
    slow, fast = 20, 60
    readings = [(slow, 0.8), (slow + 1, 0.0), (slow + 12, 0.0), (fast, 0.0)]
    observations = [
        replace(observation_of(row, noise=off), rate_noise=0.3, fitted=True)
        for row, off in readings
    ]
    assert LOG_RATE[slow] + 0.8 > LOG_RATE[~RAN_OUT].max()
    free = np.ones(len(PLACES), dtype=bool)
    free[[row for row, _ in readings]] = False
    search = Search(told(LOG_RATE, LOG_SHARE), 0)

    choice = search.choose(observations, free)
    left = search.regret_bound(observations, free)

    assert choice.best == fast
    assert choice.gain is not None
    assert choice.gain > 0
    assert left is not None
    assert left > np.exp(BEST - LOG_RATE[fast]) > 1


def feasible_best(value: np.ndarray, allowed: np.ndarray) -> float:
    return float(value[allowed & ~RAN_OUT].max())


@pytest.mark.cases_by_default(2)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_smallest_that_is_fast_enough_is_found(seed: int) -> None:
    """A sixth of the candidates meet the speed bound; finds one within 2 % of their least peak."""
    least = np.full(len(PLACES), 0.35)
    aim = SearchObjective(of="room", lower_bound=least)
    options = CandidatePool(features=PLACES, log_rate=None, log_share=None, aim=aim)
    best = feasible_best(-LOG_SHARE, LOG_RATE >= 0.35)

    rows = searched(options, seed, 16)

    reached = [-LOG_SHARE[row] for row in rows if LOG_RATE[row] >= 0.35 and not RAN_OUT[row]]
    assert max(reached) >= best - 0.02


def test_the_bound_of_one_candidate_is_the_quantile_of_a_normal() -> None:
    """Boole's sum over one candidate that surely fits is the tail of its own distribution."""
    options = CandidatePool(
        features=np.array([[0.0], [0.3]]), log_rate=np.array([0.0, 1.0]), log_share=np.full(2, -3.0)
    )
    observations, free = [Observation(row=0, log_rate=0.0, fitted=True)], np.array([False, True])
    search = Search(options)
    learned = search._rate.learn(*rates(observations))
    mean, deviation = (float(part[0]) for part in learned.of(np.array([1])))
    best = float(learned.of(np.array([0])).mean[0])

    left = search.regret_bound(observations, free)
    assert left is not None
    expected = mean - best + REGRET_WIDENING * deviation * stats.norm.ppf(0.95)
    assert np.log(left) == pytest.approx(expected, abs=2e-3)


def test_leaders_are_those_of_the_highest_posterior_mean() -> None:
    """A single lucky measurement beside two that agree is drawn towards its neighbours."""
    pool = CandidatePool(
        features=np.linspace(0, 1, 8)[:, None], log_rate=np.zeros(8), log_share=np.full(8, -1.0)
    )
    search = Search(pool)
    rates = {0: 0.0, 1: 0.05, 2: 0.1, 3: 0.1, 4: 0.15, 7: -0.6}
    seen = [
        Observation(row=row, log_rate=rate, rate_noise=0.05, log_share=-1.0, fitted=True)
        for row, rate in rates.items()
    ]
    seen.append(Observation(row=5, log_share=0.3, ran_out=True))

    found = search.leaders(seen, 3)

    assert len(found) == 3
    assert set(found) <= {1, 2, 3, 4}
    assert search.leaders(seen, 9)[-1] == 7
    assert search.leaders([seen[-1]], 3) == []


def test_the_challenger_is_the_plan_that_is_hardest_to_tell_from_the_leader() -> None:
    """One is 5 % behind for certain, another 10 % by one noisy trial."""
    pool = CandidatePool(
        features=np.linspace(0, 1, 3)[:, None] * 9, log_rate=np.zeros(3), log_share=np.full(3, -1.0)
    )
    search = Search(pool)

    def seen(row: int, rate: float, noise: float) -> Observation:
        return Observation(row=row, log_rate=rate, rate_noise=noise, log_share=-1.0, fitted=True)

    sure = [seen(0, 0.0, 0.005), seen(1, -0.05, 0.005)]

    assert search.leaders([*sure, seen(2, -0.1, 0.3)], 3, 0.02, 2.0) == [0, 2, 1]
    assert search.leaders([*sure, seen(2, -0.1, 0.005)], 3, 0.02, 2.0) == [0]  # alone: clear
