"""Errors of forecasts against measurements, as plain functions of arrays."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

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


def oom_scores(p_fits: ArrayLike, oom: ArrayLike) -> tuple[float | None, float | None]:
    """Precision and recall of "runs out of memory"; both None where no run did.

    A run is forecast to run out where P(fits) is below a half. Precision is None too where none is
    forecast to.
    """
    chance, truth = np.asarray(p_fits, float), np.asarray(oom, bool)
    known = np.isfinite(chance)
    out, truth = chance[known] < OOM_BELOW, truth[known]
    if not truth.any():
        return None, None
    hits = float((out & truth).sum())
    return (hits / float(out.sum()) if out.any() else None), hits / float(truth.sum())


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and np.isfinite(value)]


def _pair(forecast: ArrayLike, measured: ArrayLike) -> tuple[Numbers, Numbers]:
    told, truth = np.asarray(forecast, float), np.asarray(measured, float)
    known = np.isfinite(told) & np.isfinite(truth)
    return told[known], truth[known]
