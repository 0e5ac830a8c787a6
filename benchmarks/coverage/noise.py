"""Series of step times by models of noise and of slow starts, with their true mean.

Times are relative to the typical step of a steady plan. All models are assumptions; none is fitted
to a machine.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

Numbers = NDArray[np.float64]
Kind = Literal["independent", "dependent", "heavy", "stall", "drift", "start"]

STEPS = 100  # objective.max_steps by default
STEP_SECONDS = 0.3
_HOLD_SECONDS = 30.0  # mean time at one of two clocks, and duration of throttling
_PARETO_SHAPE, _PARETO_SHARE, _PARETO_SCALE = 1.8, 0.05, 0.2
_STEP = np.arange(STEPS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseModel:
    """A model of step times.

    Attributes:
        kind: Its group; the goals differ.
        mean: Mean step in the long run.
        draw: Draws series of `STEPS` steps, one a row.
    """

    kind: Kind
    mean: float
    draw: Callable[[np.random.Generator, int], Numbers]


def lognormal(random: np.random.Generator, rows: int, deviation: float) -> Numbers:
    """Independent steps of mean 1."""
    logs = deviation * random.standard_normal((rows, STEPS)) - deviation**2 / 2
    return np.exp(logs)


def autoregressive(
    random: np.random.Generator, rows: int, correlation: float, deviation: float
) -> Numbers:
    """Steps of mean 1 that resemble the step before: AR(1), from its stationary distribution."""
    fresh = random.standard_normal((rows, STEPS))
    fresh[:, 1:] *= np.sqrt(1 - correlation**2)
    return 1 + deviation * lfilter([1.0], [1.0, -correlation], fresh)


def _independent(deviation: float) -> NoiseModel:
    return _shaped("independent", 1.0, np.ones(STEPS), deviation)


def _autoregressive(correlation: float, deviation: float, kind: Kind = "dependent") -> NoiseModel:
    def draw(random: np.random.Generator, rows: int) -> Numbers:
        return autoregressive(random, rows, correlation, deviation)

    return NoiseModel(kind=kind, mean=1.0, draw=draw)


def _drift(deviation: float, seconds: float) -> NoiseModel:
    """An Ornstein-Uhlenbeck process with this correlation time."""
    return _autoregressive(float(np.exp(-STEP_SECONDS / seconds)), deviation, "drift")


def _heavy_tail() -> NoiseModel:
    def draw(random: np.random.Generator, rows: int) -> Numbers:
        excess = _PARETO_SCALE * (1 + random.pareto(_PARETO_SHAPE, (rows, STEPS)))
        hit = random.random((rows, STEPS)) < _PARETO_SHARE
        return lognormal(random, rows, 0.02) + np.where(hit, excess, 0.0)

    mean_excess = _PARETO_SHARE * _PARETO_SCALE * _PARETO_SHAPE / (_PARETO_SHAPE - 1)
    return NoiseModel(kind="heavy", mean=1 + mean_excess, draw=draw)


def _stall(period: int, excess: float) -> NoiseModel:
    def draw(random: np.random.Generator, rows: int) -> Numbers:
        phase = random.integers(0, period, (rows, 1))
        slow: Numbers = 1 + excess * ((_STEP + phase) % period == 0)
        return lognormal(random, rows, 0.02) * slow

    return NoiseModel(kind="stall", mean=1 + excess / period, draw=draw)


def _two_clocks(slower: float) -> NoiseModel:
    def draw(random: np.random.Generator, rows: int) -> Numbers:
        switches = random.random((rows, STEPS)) < STEP_SECONDS / _HOLD_SECONDS
        state = (random.integers(0, 2, (rows, 1)) + switches.cumsum(axis=1)) % 2
        return lognormal(random, rows, 0.01) * np.where(state == 1, slower, 1.0)

    return NoiseModel(kind="drift", mean=(1 + slower) / 2, draw=draw)


def _shaped(kind: Kind, mean: float, shape: Numbers, deviation: float = 0.01) -> NoiseModel:
    """Independent steps around a shape, which each trial has."""
    return NoiseModel(
        kind=kind, mean=mean, draw=lambda random, rows: lognormal(random, rows, deviation) * shape
    )


def _throttling(slower: float) -> NoiseModel:
    shape = 1 + slower * np.minimum(STEP_SECONDS * _STEP / _HOLD_SECONDS, 1.0)
    return _shaped("drift", 1 + slower, shape)


def _start(shape: Numbers, deviation: float = 0.01) -> NoiseModel:
    """Steady at 1 in the long run, after a start of this shape."""
    return _shaped("start", 1.0, shape, deviation)


def _first(steps: int, factor: float) -> Numbers:
    return np.where(steps > _STEP, factor, 1.0)


def _decay(excess: float, steps: float) -> Numbers:
    shape: Numbers = 1 + excess * np.exp(-_STEP / steps)
    return shape


MODELS: Mapping[str, NoiseModel] = {
    "lognormal 1 %": _independent(0.01),
    "lognormal 3 %": _independent(0.03),
    "lognormal 10 %": _independent(0.10),
    "lognormal 25 %": _independent(0.25),
    "AR(1) 0.5, 3 %": _autoregressive(0.5, 0.03),
    "AR(1) 0.9, 3 %": _autoregressive(0.9, 0.03),
    "heavy tail: 5 % of steps + 20 % x Pareto 1.8": _heavy_tail(),
    "stall, each 10th step + 50 %": _stall(10, 0.5),
    "stall, each 20th step + 300 %": _stall(20, 3.0),
    "stall, each 100th step + 500 %": _stall(100, 5.0),
    "drift: OU 5 %, 120 s": _drift(0.05, 120),
    "drift: OU 10 %, 600 s": _drift(0.10, 600),
    "two clocks 1 / 1.15, 30 s": _two_clocks(1.15),
    "throttling + 12 % within 30 s": _throttling(0.12),
    "first step x 10": _start(_first(1, 10.0)),
    "first 3 steps x 3": _start(_first(3, 3.0)),
    "first 8 steps + 20 %": _start(_first(8, 1.2)),
    "first 8 steps + 20 %, noise 3 %": _start(_first(8, 1.2), 0.03),
    "first 8 steps - 30 %": _start(_first(8, 0.7)),
    "1 + 0.5 exp(-i / 10)": _start(_decay(0.5, 10)),
    "1 + 0.3 exp(-i / 30)": _start(_decay(0.3, 30)),
    "1 + 0.1 exp(-i / 30)": _start(_decay(0.1, 30)),
    "first 20 steps - 10 %": _start(_first(20, 0.9)),
    "one stall at step 8 (x 5)": _start(np.where(_STEP == 7, 5.0, 1.0)),
}
