"""Parallel trials: each gets its own candidate."""

from __future__ import annotations

import pickle
import threading
from collections import Counter
from collections.abc import Callable
from itertools import combinations
from math import dist
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.storages import InMemoryStorage, RDBStorage
from optuna.trial import TrialState

from orchestrator.search.pending import PROPOSED
from orchestrator.search.plimsoll_sampler import REASON, PlimsollSampler

GRID = {"batch": IntDistribution(1, 64), "ratio": IntDistribution(0, 9)}
SMALL = {"stage": CategoricalDistribution((0, 2, 3)), "batch": IntDistribution(1, 2)}


@pytest.fixture(autouse=True)
def quiet() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)


def throughput(trial: optuna.Trial) -> float:
    batch, ratio = trial.suggest_int("batch", 1, 64), trial.suggest_int("ratio", 0, 9)
    return float(batch**0.5 * (1 - 0.02 * ratio))


def small(trial: optuna.Trial) -> float:
    return 1.0 + trial.suggest_categorical("stage", (0, 2, 3)) * trial.suggest_int("batch", 1, 2)


def repeated(study: optuna.Study) -> list[Any]:
    counts = Counter(tuple(sorted(trial.params.items())) for trial in study.trials)
    return [params for params, count in counts.items() if count > 1]


@pytest.mark.parametrize("jobs", [2, 4])
def test_threads_never_repeat_a_candidate(jobs: int) -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(seed=0))

    study.optimize(throughput, n_trials=24, n_jobs=jobs)

    assert not repeated(study)


@pytest.mark.parametrize("seed", range(2))
def test_threads_take_each_candidate_of_a_small_grid_once(seed: int) -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(seed=seed))

    study.optimize(small, n_trials=6, n_jobs=2)

    assert not repeated(study)
    assert len(study.trials) == 6


def test_random_first_trials_take_each_candidate_once() -> None:
    """No trial has ended, so all candidates are drawn at random."""
    study = optuna.create_study(sampler=PlimsollSampler(seed=3))

    for _ in range(6):
        study.ask(SMALL)

    assert not repeated(study)


def test_a_proposal_counts_before_its_parameters_are_suggested() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, GRID, seed=0))
    study.tell(study.ask(GRID), 1.0)

    trials = [study.ask() for _ in range(4)]
    for name, grid in GRID.items():  # all get the first parameter before any gets the second
        for trial in trials:
            trial.suggest_int(name, grid.low, grid.high)

    assert not repeated(study)


def test_trials_asked_for_at_once_are_not_neighbours() -> None:
    """Pending trials are fantasized, so the next one explores elsewhere."""
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, GRID, seed=0))
    study.enqueue_trial({"batch": 32, "ratio": 5})
    study.tell(study.ask(GRID), 1.0)

    trials = [study.ask(GRID).params for _ in range(4)]

    places = [(one["batch"] / 64, one["ratio"] / 9) for one in trials]
    assert min(dist(one, other) for one, other in combinations(places, 2)) > 0.5


def test_enqueued_parameters_are_left_to_their_trial() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, SMALL, seed=0))
    study.tell(study.ask(SMALL), 1.0)
    waiting = {"stage": 3, "batch": 2}
    assert waiting != study.trials[0].params

    study.enqueue_trial(waiting)
    proposed = [
        study.sampler.sample_relative(study, new_trial(study), dict(SMALL)) for _ in range(4)
    ]

    assert waiting not in proposed
    assert len({tuple(params.values()) for params in proposed}) == 4


def test_the_rest_of_a_partly_enqueued_trial_is_new() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, SMALL, seed=0))
    for batch in (1, 2):
        study.enqueue_trial({"stage": 2, "batch": batch})
        study.tell(study.ask(SMALL), 1.0)

    for stage in (0, 3, 0, 3):
        study.enqueue_trial({"stage": stage})
        study.ask(SMALL)

    assert [trial.params["stage"] for trial in study.trials[2:]] == [0, 3, 0, 3]
    assert not repeated(study)


def test_a_trial_that_failed_before_it_got_its_parameters_takes_nothing() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, SMALL, seed=0))
    trial = study.ask()
    trial.suggest_categorical("stage", (0, 2, 3))  # the sampler has proposed both by now
    study.tell(trial, state=TrialState.FAIL)

    for _ in range(6):
        study.tell(study.ask(SMALL), 1.0)

    assert len({tuple(trial.params.items()) for trial in study.trials[1:]}) == 6


def test_of_a_full_grid_those_that_are_not_under_way_are_tried_again() -> None:
    study = optuna.create_study(direction="maximize", sampler=PlimsollSampler(None, SMALL, seed=0))
    trials = [study.ask(SMALL) for _ in range(6)]
    assert not repeated(study)
    for trial in trials[:2]:
        study.tell(trial, 1.0)

    again = [study.ask(SMALL).params for _ in range(2)]

    ended = [trial.params for trial in trials[:2]]
    assert sorted(map(str, again)) == sorted(map(str, ended))
    assert study.ask(SMALL).params  # all are under way now: any of them


class Contended(InMemoryStorage):
    """Writes another proposal between a sampler's read of the trials and its own proposal."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: list[Callable[[], object]] = []

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        if key == PROPOSED and self.meanwhile:
            self.meanwhile.pop()()
        super().set_trial_system_attr(trial_id, key, value)


@pytest.mark.parametrize("known", [SMALL, None], ids=["proposed", "random"])
def test_processes_that_propose_the_same_at_once_propose_again(
    known: dict[str, Any] | None,
) -> None:
    """A sampler of another process, with the same seed, always writes a moment earlier."""
    storage = Contended()
    ours, theirs = (
        optuna.create_study(
            study_name="shared",
            storage=storage,
            direction="maximize",
            sampler=PlimsollSampler(None, known, seed=5),
            load_if_exists=True,
        )
        for _ in range(2)
    )

    for _ in range(3):
        storage.meanwhile.append(lambda: theirs.ask(SMALL))
        ours.ask(SMALL)

    assert len(ours.trials) == 6
    assert not repeated(ours)


def test_drivers_of_one_database_never_repeat_a_candidate(tmp_path: Path) -> None:
    """Two samplers with the same seed share only the database file."""
    url = f"sqlite:///{tmp_path / 'study.db'}"
    optuna.create_study(study_name="shared", storage=url, direction="maximize")
    together = threading.Barrier(2, timeout=60)

    def drive() -> None:
        storage = RDBStorage(url, engine_kwargs={"connect_args": {"timeout": 60}})
        try:
            study = optuna.load_study(
                study_name="shared", storage=storage, sampler=PlimsollSampler(None, GRID, seed=0)
            )
            for _ in range(5):
                together.wait()
                study.tell(study.ask(GRID), 1.0)
        finally:
            storage.engine.dispose()

    drivers = [threading.Thread(target=drive) for _ in range(2)]
    for driver in drivers:
        driver.start()
    for driver in drivers:
        driver.join()

    study = optuna.load_study(study_name="shared", storage=url)
    assert len(study.trials) == 10
    assert not repeated(study)


def test_reseeded_samplers_draw_different_numbers() -> None:
    def drawn(sampler: PlimsollSampler) -> list[Any]:
        study = optuna.create_study(sampler=sampler)
        return [study.ask(GRID).params for _ in range(4)]

    same, reseeded = PlimsollSampler(seed=0), PlimsollSampler(seed=0)
    reseeded.reseed_rng()

    assert drawn(same) == drawn(PlimsollSampler(seed=0))
    assert drawn(reseeded) != drawn(PlimsollSampler(seed=0))
    assert drawn(PlimsollSampler()) != drawn(PlimsollSampler())


def test_a_sampler_reseeds_its_search_too() -> None:
    """Ties between equal scores are broken at random too."""

    def proposed(*, reseed: bool) -> list[Any]:
        sampler = PlimsollSampler(None, GRID, seed=0)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        first = study.ask(GRID)
        if reseed:
            sampler.reseed_rng()
        return [first.params, *(study.ask(GRID).params for _ in range(4))]

    assert proposed(reseed=False) == proposed(reseed=False)
    assert proposed(reseed=True)[0] == proposed(reseed=False)[0]
    assert proposed(reseed=True) != proposed(reseed=False)


def test_a_sampler_is_pickled() -> None:
    sampler = pickle.loads(pickle.dumps(PlimsollSampler(None, SMALL, seed=0)))
    study = optuna.create_study(sampler=sampler)

    study.ask(SMALL)

    assert study.trials[0].user_attrs[REASON]


def new_trial(study: optuna.Study) -> optuna.trial.FrozenTrial:
    return study._storage.get_trial(study._storage.create_new_trial(study._study_id))
