"""Errors of forecasts against measurements, as plain functions of arrays."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from orchestrator.forecast.request import RECOMMENDED_FIT_PROBABILITY

Numbers = NDArray[np.float64]
WITHIN = 0.05  # of the best: as good as the best
OOM_BELOW = 0.5  # P(fits) under which a run is forecast to run out of memory
RULED_OUT_BELOW = 0.01  # P(fits) under which it is so with certainty


def percentage_errors(forecast: ArrayLike, measured: ArrayLike) -> Numbers:
    """|forecast - measured| / measured of the rows where both are known."""
    told, truth = np.asarray(forecast, float), np.asarray(measured, float)
    known = np.isfinite(told) & np.isfinite(truth) & (truth > 0)
    errors: Numbers = np.abs(told[known] - truth[known]) / truth[known]
    return errors


def median(values: Iterable[float | None]) -> float | None:
    """Returns the median of the known values; None if none is known."""
    known = _known(values)
    return float(np.median(known)) if known else None


def mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the known values; None if none is known."""
    known = _known(values)
    return float(np.mean(known)) if known else None


def kendall_tau(forecast: ArrayLike, measured: ArrayLike, *, noise: float) -> float | None:
    """(concordant - discordant) / pairs.

    Pairs count whose measured ratio, larger over smaller, is 1 + noise or more; others are ties by
    measurement and left out. A pair that is forecast equal is neither concordant nor discordant.
    None where no pair counts.
    """
    told, truth = _pair(forecast, measured)
    first, second = np.triu_indices(len(truth), k=1)
    ratio = np.log(truth[first] / truth[second])
    counts = np.abs(ratio) >= np.log1p(noise)
    if not counts.any():
        return None
    agreement = np.sign(ratio[counts]) * np.sign(told[first] - told[second])[counts]
    return float(agreement.mean())


def top1_regret(forecast: ArrayLike, measured: ArrayLike) -> float | None:
    """1 - throughput measured of the predicted best / best throughput measured.

    None for fewer than two runs. Of runs that are forecast equal and best the mean counts.
    """
    told, truth = _pair(forecast, measured)
    if len(truth) < 2:
        return None
    chosen = truth[np.isclose(told, told.max(), rtol=1e-9, atol=0)]
    return float(1 - chosen.mean() / truth.max())


def oom_scores(p_fits: ArrayLike, oom: ArrayLike) -> dict[str, float | None]:
    """Scores of "fits" among runs of which it is known; None where no run counts.

    Precision and recall are of "runs out of memory", where P(fits) is below a half. `brier` is the
    mean squared error of P(fits). `kept_back` is the share of runs that fit and are not
    recommended by `plimsoll plan`, `told_off` that of runs that do not fit.
    """
    chance, truth = np.asarray(p_fits, float), np.asarray(oom, bool)
    known = np.isfinite(chance)
    chance, truth = chance[known], truth[known]
    out, back = chance < OOM_BELOW, chance < RECOMMENDED_FIT_PROBABILITY
    return {
        "oom_precision": mean(truth[out]) if truth.any() else None,
        "oom_recall": mean(out[truth]),
        "brier": mean((chance - ~truth) ** 2),
        "kept_back": mean(back[~truth]),
        "told_off": mean(back[truth]),
    }


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and np.isfinite(value)]


def _pair(forecast: ArrayLike, measured: ArrayLike) -> tuple[Numbers, Numbers]:
    told, truth = np.asarray(forecast, float), np.asarray(measured, float)
    known = np.isfinite(told) & np.isfinite(truth)
    return told[known], truth[known]
