"""Trials of a few seconds on a GPU: do they tell plans apart that differ by 1 %?

Simulated: windows of 1 s, normal, which scatter as those of the trials in
`results/gpu/h200/plans.csv`; five quiet trials of that length came before.
"""

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from search_spaces.hardware.noise import Noise, noise_prior
from workers.measure.interval import mean_bounds

_MEASURED = Path(__file__).parents[1] / "results/gpu/h200/plans.csv"
_SEED, _TRIALS, _EARLIER, _SLOWER = 20261128, 2000, 5, 1.01
_SECONDS = (3, 5, 8, 12)  # objective.min_steps is 12 windows by default


def deviations() -> Iterator[float]:
    """Yields the scatter of each trial's windows, which its interval and its 0.3 / n tell."""
    for row in csv.DictReader(_MEASURED.read_text().splitlines()):
        if row["outcome"] != "measured":
            continue
        value, low, high = (float(row[f"step_seconds{end}"]) for end in ("", "_low", "_high"))
        relative = math.log(value / low)
        windows = round(0.3 / (high / value - math.exp(relative)))
        if windows > 3:  # 3 may stand for 2
            yield relative * math.sqrt(windows) / float(stdtrit(windows - 1, 0.975))


def figures(windows: int, noise: Noise) -> dict[str, float]:
    """The share of pairs of trials that are told apart, in %, and half of an interval, in %."""
    random, rows = np.random.default_rng([_SEED, windows]), list[list[NDArray[Any]]]()
    for ours, theirs in product(deviations(), repeat=2):
        fast, equal, slow = (
            mean * (1 + scatter * random.standard_normal((_TRIALS, windows)))
            for mean, scatter in ((1.0, ours), (1.0, theirs), (_SLOWER, theirs))
        )
        (value, low, high), (_, equal_low, equal_high), (slow_value, slow_low, _) = (
            mean_bounds(series, np.ones_like(series), noise) for series in (fast, equal, slow)
        )
        differ = (high < equal_low) | (equal_high < low)
        rows.append([high < slow_low, value < slow_value, differ, (high - low) / 2 / value])
    names = ("told apart", "in the right order", "equal plans told apart", "half-width")
    shares = (100 * np.asarray(rows, float)).mean(axis=(0, 2))
    return {name: round(float(share), 2) for name, share in zip(names, shares, strict=True)}


def by_seconds() -> Iterator[tuple[str, dict[str, float]]]:
    """Yields the figures of each length of a trial, with both noises."""
    for seconds in _SECONDS:
        yield f"{seconds} s, as on a CPU", figures(seconds, noise_prior("cpu"))
        noise = replace(noise_prior("cuda"), seconds=float(_EARLIER * seconds))
        yield f"{seconds} s, learned", figures(seconds, noise)
