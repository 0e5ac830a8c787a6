"""Races: how soon each competitor comes near the best of a surface."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.search.competitors.base import AbstractCompetitor
from benchmarks.search.surfaces import Numbers, Surface

AFTER = (5, 10, 20, 40)  # trials after which regret is told
NEAR = 0.02  # a race goes on until the best so far is so near to the best
_EXACT = 1e-9  # shares that differ by less are the same


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Race:
    """One search of one surface; arrays have a value after each trial.

    `regret` is 1 - best throughput so far / best of the surface, 1 before anything was measured;
    both throughputs are means over repeats. `seconds` is what all trials so far took, failures
    included. `ran_out` counts the trials that ran out or failed before the best within 2 %.
    """

    regret: Numbers
    seconds: Numbers
    ran_out: int

    def trials_to(self, share: float) -> int:
        """The first trial that came so near to the best; one more than were made if none did."""
        near = np.flatnonzero(self.regret <= share + _EXACT)
        return int(near[0]) + 1 if len(near) else len(self.regret) + 1

    def seconds_to(self, share: float) -> float:
        """Seconds that the trials took up to the one that came so near."""
        return float(self.seconds[min(self.trials_to(share), len(self.seconds)) - 1])

    def regret_at(self, trials: int) -> float:
        """The regret after that many trials, or after the last one."""
        return float(self.regret[min(trials, len(self.regret)) - 1])


def race(surface: Surface, competitor: AbstractCompetitor, seed: int) -> Race:
    """Measures candidates until regret is known after 40 trials and the best is found within 2 %.

    Each trial tells one of the candidate's repeats, drawn at random.
    """
    drawn = np.random.default_rng([seed, 2])
    free = np.ones(len(surface), dtype=bool)
    regret, seconds, best, ran_out = [1.0], [0.0], 0.0, 0
    while (
        free.any() and regret[-1] > 0 and (regret[-1] > NEAR + _EXACT or len(regret) <= AFTER[-1])
    ):
        row = competitor.next(free)
        assert free[row], "a candidate is measured once"
        free[row] = False
        trials = surface.trials[row]
        trial = trials[int(drawn.integers(len(trials)))]
        competitor.tell(row, trial)
        if trial.rate is None:
            ran_out += regret[-1] > NEAR + _EXACT
        else:
            best = max(best, float(surface.rate[row]))
        seconds.append(seconds[-1] + trial.seconds)
        regret.append(max(1 - best / surface.best, 0.0))
    return Race(regret=np.array(regret[1:]), seconds=np.array(seconds[1:]), ran_out=ran_out)


def figures(races: Sequence[Race]) -> dict[str, float]:
    """Over the seeds: medians of trials and seconds, means of regret."""
    return {
        "trials_to_5pct": float(np.median([one.trials_to(0.05) for one in races])),
        "trials_to_2pct": float(np.median([one.trials_to(NEAR) for one in races])),
        "seconds_to_2pct": float(np.median([one.seconds_to(NEAR) for one in races])),
        **{
            f"regret_at_{trials}": float(np.mean([one.regret_at(trials) for one in races]))
            for trials in AFTER
        },
        "oom_trials": float(np.median([one.ran_out for one in races])),
    }


def over_all(by_surface: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Over surfaces: medians of trials and seconds, means of regret."""
    return {
        key: float(
            (np.mean if key.startswith("regret") else np.median)([one[key] for one in by_surface])
        )
        for key in (by_surface[0] if by_surface else ())
    }
