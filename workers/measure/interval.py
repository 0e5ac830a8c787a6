"""Confidence interval of the mean step time, and the rule that ends a trial.

Pure arithmetic on arrays whose last axis holds the windows of one trial, in order. A trial needs
one row; `benchmarks.coverage` passes thousands.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from search_spaces.hardware.noise import Noise, noise_prior
from search_spaces.trial import Estimate

Numbers = NDArray[np.float64]
Flags = NDArray[np.bool_]

CONFIDENCE = 0.95
# Fewer windows do not tell dependence from chance, and count as independent
MIN_WINDOWS_FOR_DEPENDENCE = 12
MIN_WINDOWS_FOR_SLOPE = 6  # with fewer, a slope tells more of noise than of work
# The lag-1 autocorrelation is raised by this many of its standard errors: the rule looks after
# each window, and stops most readily when the estimate is too low by chance
_AUTOCORRELATION_MARGIN = 1.3
_MAX_AUTOCORRELATION = 0.99
_LEAST_SURPLUS = 0.02  # of effective windows over 1; 12 windows at the maximum above have 0.04
_MIN_FREEDOM = 2.0  # degrees of freedom; with 1, Student's t is too wide to be of use
# A window stalled if it is slower than the median by 4 standard deviations. The median of absolute
# deviations estimates them: of normal noise, it is one divided by 1.4826
_STALL_DEVIATIONS = 4.0 * 1.4826


def mean_estimate(
    seconds: Sequence[float],
    steps: Sequence[int] | None = None,
    excess: Sequence[float] | None = None,
    noise: Noise | None = None,
) -> Estimate:
    """Returns the mean seconds of a step and its 95 % confidence interval.

    Args:
        seconds: Seconds per step of each window, of which there is one at least.
        steps: Steps of each window; None if all have the same number.
        excess: Work of a step in each window beyond that of a mean step; None if all are alike.
        noise: What is known of the device; None for a CPU of which nothing is.
    """
    work = None if excess is None else np.asarray(excess, float)
    bounds = mean_bounds(np.asarray(seconds, float), _weights(seconds, steps), noise, work)
    value, low, high = map(float, bounds)
    return Estimate(value=value, low=min(low, value), high=max(high, value))


def mean_bounds(
    seconds: Numbers, steps: Numbers, noise: Noise | None = None, excess: Numbers | None = None
) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the mean, and the lower and upper bound of its 95 % interval, in seconds.

    The mean is all seconds over all steps. Where steps differ in work, it is that of a step of mean
    work: seconds are regressed on the excess, a control variate whose mean is known to be 0.
    Student's t is symmetric for its logarithm, so both bounds are positive. The upper bound also
    allows for stalls that no window caught.

    Source:
        Owen, "Monte Carlo theory, methods and examples", 2013, section 8.9 (control variates).
    """
    windows = seconds.shape[-1]
    unseen = (noise or noise_prior("cpu")).allowance(windows, (seconds * steps).mean(axis=-1))
    seconds, inflation, slopes = _at_mean_work(seconds, steps, excess)
    mean = _weighted_mean(seconds, steps)
    weights = steps / steps.mean(axis=-1, keepdims=True)
    deviations = weights * (seconds - mean[..., None])  # of a ratio of sums, to first order
    effective = effective_windows(deviations) - slopes
    # deviations from the mean of the same windows are too small by one effective window; a single
    # window has none, whatever divides them
    variance = (deviations**2).mean(axis=-1) / np.maximum(effective - 1, _LEAST_SURPLUS)
    freedom = np.maximum(effective - 1, _MIN_FREEDOM)
    error = np.sqrt(variance * inflation)
    relative = stdtrit(freedom, (1 + CONFIDENCE) / 2) * error / mean
    return mean, mean * np.exp(-relative), mean * (np.exp(relative) + unseen)


def _at_mean_work(
    seconds: Numbers, steps: Numbers, excess: Numbers | None
) -> tuple[Numbers, Numbers, Numbers]:
    """Returns the seconds that windows of mean work would have taken.

    Returns:
        The seconds; the factor by which the slope's error raises the variance of their mean; and
        the number of slopes that were fitted, 0 or 1.
    """
    ones = np.ones(seconds.shape[:-1])
    if excess is None or seconds.shape[-1] < MIN_WINDOWS_FOR_SLOPE:
        return seconds, ones, 0 * ones
    mean = _weighted_mean(excess, steps)
    apart = excess - mean[..., None]
    spread = _weighted_mean(apart**2, steps)
    fitted = spread > 0
    divisor = np.where(fitted, spread, 1.0)
    slope = np.maximum(_weighted_mean(apart * seconds, steps) / divisor, 0.0)
    adjusted = seconds - (slope * mean)[..., None] - slope[..., None] * apart
    # time is never less than none: a rest below that says that the slope is noise
    sane = fitted & (_weighted_mean(adjusted, steps) > 0)
    return (
        np.where(sane[..., None], adjusted, seconds),
        np.where(sane, 1 + mean**2 / divisor, 1.0),
        sane.astype(float),
    )


def effective_windows(deviations: Numbers) -> Numbers:
    """Returns how many independent windows would tell as much about the mean.

    The series counts as autoregressive of order 1. Its autocorrelation is corrected for the bias
    of short series, raised by a margin, and never negative.

    Args:
        deviations: Deviations from the mean.

    Source:
        Marriott and Pope, "Bias in the estimation of autocorrelations", Biometrika 41, 1954;
        Priestley, "Spectral Analysis and Time Series", 1981, section 5.3 (variance of the mean).
    """
    windows = deviations.shape[-1]
    if windows < MIN_WINDOWS_FOR_DEPENDENCE:
        return np.full(deviations.shape[:-1], float(windows))
    power = (deviations**2).sum(axis=-1)
    lagged = (deviations[..., 1:] * deviations[..., :-1]).sum(axis=-1)
    observed = lagged / np.where(power > 0, power, 1.0)
    unbiased = np.clip((windows * observed + 1) / (windows - 4), 0, _MAX_AUTOCORRELATION)
    error = np.sqrt((1 - np.clip(observed, 0, 1) ** 2) / windows)
    rho = np.clip(unbiased + _AUTOCORRELATION_MARGIN * error, 0, _MAX_AUTOCORRELATION)
    inflation = (1 + rho) / (1 - rho) - 2 * rho * (1 - rho**windows) / (windows * (1 - rho) ** 2)
    return windows / inflation


def stall_seconds(
    seconds: Sequence[float], steps: Sequence[int], excess: Sequence[float] | None = None
) -> float:
    """Returns the seconds that stalled windows took beyond those of median speed and mean work."""
    work = None if excess is None else np.asarray(excess, float)
    times, _, _ = _at_mean_work(np.asarray(seconds, float), _weights(seconds, steps), work)
    slower = times - np.median(times)
    stalled = slower > _STALL_DEVIATIONS * np.median(np.abs(slower))
    return float((slower * np.asarray(steps))[stalled].sum())


def is_precise(
    seconds: Numbers,
    steps: Numbers,
    interval: float,
    noise: Noise | None = None,
    excess: Numbers | None = None,
) -> Flags:
    """Returns True where measuring may end.

    Half of the interval is at most `interval` of the mean, and the means of both halves of the
    series differ by at most half of that. The second condition catches a slow start that lasts
    longer than the series has been measured: its windows agree with each other.
    """
    mean, low, high = mean_bounds(seconds, steps, noise, excess)
    seconds, _, _ = _at_mean_work(seconds, steps, excess)
    half = seconds.shape[-1] // 2
    if half == 0:
        return np.zeros(mean.shape, bool)
    first = _weighted_mean(seconds[..., :half], steps[..., :half])
    second = _weighted_mean(seconds[..., -half:], steps[..., -half:])
    narrow = (high - low) / 2 <= interval * mean
    return narrow & (np.abs(first - second) <= interval / 2 * mean)


def _weighted_mean(seconds: Numbers, steps: Numbers) -> Numbers:
    return (seconds * steps).sum(axis=-1) / steps.sum(axis=-1)


def _weights(seconds: Sequence[float], steps: Sequence[int] | None) -> Numbers:
    return np.ones(len(seconds)) if steps is None else np.asarray(steps, float)
