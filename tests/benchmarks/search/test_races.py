"""Races by hand: what each trial tells, and what is counted."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.search.competitors.base import AbstractCompetitor, Flags
from benchmarks.search.competitors.known import COMPETITORS, WRONG
from benchmarks.search.races import AFTER, Race, figures, race
from benchmarks.search.run import run
from benchmarks.search.surfaces import Surface, Trial
from tests.benchmarks.search.toys import toy_surface

KEYS = {
    *("trials_to_5pct", "trials_to_2pct", "seconds_to_2pct", "oom_trials"),
    *(f"regret_at_{trials}" for trials in AFTER),
}


class InOrder(AbstractCompetitor):
    def __init__(self) -> None:
        self.told: list[Trial] = []

    def next(self, free: Flags) -> int:
        return int(np.flatnonzero(free)[0])

    def tell(self, row: int, trial: Trial) -> None:
        self.told.append(trial)


@pytest.fixture
def surface() -> Surface:
    candidates = [
        {"micro_batch": 2.0**power, "ckpt": ckpt} for power in range(4) for ckpt in ("full", "none")
    ]
    rates = [None, 50.0, 94.0, 95.0, None, 98.0, 100.0, None]
    return toy_surface(
        candidates, rates, log_rate=[float(at) for at in range(8)], log_share=[-1.0] * 8
    )


def test_regret_is_what_the_best_so_far_lacks(surface: Surface) -> None:
    found = race(surface, InOrder(), 0)

    assert found.regret.tolist() == pytest.approx([1.0, 0.5, 0.06, 0.05, 0.05, 0.02, 0.0])
    assert found.trials_to(0.05) == 4  # 5 % are enough, not only less
    assert found.trials_to(0.02) == 6
    assert found.seconds.tolist() == [10.0 * trial for trial in range(1, 8)]
    assert found.seconds_to(0.02) == 60.0
    assert found.regret_at(3) == pytest.approx(0.06)
    assert found.regret_at(40) == 0.0


def test_what_ran_out_is_counted_until_the_best_is_near(surface: Surface) -> None:
    later = toy_surface(surface.candidates, [None, 99.0, None, None, 100.0, 1.0, 1.0, 1.0])

    assert race(surface, InOrder(), 0).ran_out == 2
    assert race(later, InOrder(), 0).ran_out == 1


def test_a_race_ends_after_forty_trials_once_the_best_is_near() -> None:
    candidates = [{"micro_batch": float(at)} for at in range(1, 101)]
    near = toy_surface(candidates, [99.0] + [1.0] * 98 + [100.0])
    far = toy_surface(candidates, [90.0] + [1.0] * 98 + [100.0])

    assert len(race(near, InOrder(), 0).regret) == 40
    assert len(race(far, InOrder(), 0).regret) == 100


def test_a_trial_tells_one_repeat_and_regret_goes_by_the_mean(surface: Surface) -> None:
    trials = list(surface.trials)
    repeats = tuple(Trial(rate=rate, log_share=None, seconds=1.0) for rate in (40.0, 60.0))
    trials[1] = repeats
    noisy = replace(surface, trials=tuple(trials))
    seen = set()
    for seed in range(20):
        competitor = InOrder()
        assert race(noisy, competitor, seed).regret[1] == 0.5
        seen.add(competitor.told[1].rate)

    assert seen == {40.0, 60.0}


def test_figures_are_medians_of_trials_and_means_of_regret() -> None:
    races = [
        Race(regret=np.array([*[0.5] * (at - 1), 0.0]), seconds=np.arange(1.0, at + 1), ran_out=at)
        for at in (1, 2, 9)
    ]
    told = figures(races)

    assert set(told) == KEYS
    assert told["trials_to_2pct"] == 2
    assert told["seconds_to_2pct"] == 2
    assert told["oom_trials"] == 2
    assert told["regret_at_5"] == pytest.approx(0.5 / 3)
    assert told["regret_at_10"] == 0


@pytest.mark.parametrize("name", [*COMPETITORS, *WRONG])
def test_every_competitor_comes_to_the_end(surface: Surface, name: str) -> None:
    found = race(surface, {**COMPETITORS, **WRONG}[name](surface, 3), 3)

    assert found.regret[-1] == 0
    assert len(found.regret) <= len(surface)


@pytest.mark.thorough
def test_results_do_not_depend_on_processes(surface: Surface) -> None:
    names = ("plimsoll", "random")
    one, two = (run([surface], names, 7, processes) for processes in (1, 2))

    assert one == two
    assert one["surfaces"].keys() == {"toy"}
    assert list(one["surfaces"]["toy"]) == list(one["overall"]) == list(names)
