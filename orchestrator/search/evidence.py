"""What trials have shown of candidates, as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from orchestrator.search.gaussian import Numbers, Observations

_EXACT = 0.003  # standard deviation of the logarithm of a peak that is measured twice
_BOUND = 0.01  # how sharp "ran out" and "fitted" are, as logarithms


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What one trial showed of a candidate.

    `log_rate` is the logarithm of its throughput, None if none was measured. `log_share` is that
    of its peak over the memory limit: of a trial that ran out, of what it is known to have wanted
    at least. Both None: the trial says nothing.
    """

    row: int
    log_rate: float | None = None
    rate_noise: float = 0.01
    log_share: float | None = None
    ran_out: bool = False
    fitted: bool = False  # it ran, whether or not its peak is known


def rates(sights: Iterable[Sight]) -> tuple[np.ndarray, Observations]:
    """Candidates whose throughput was measured, and the logarithms of it."""
    known = [sight for sight in sights if sight.log_rate is not None]
    return _rows(known), Observations(
        value=np.array([sight.log_rate for sight in known], dtype=float),
        noise=np.array([sight.rate_noise for sight in known], dtype=float),
        side=np.zeros(len(known), dtype=np.int64),
    )


def shares(sights: Iterable[Sight]) -> tuple[np.ndarray, Observations]:
    """Candidates of whose memory something is known: peaks, and bounds where there is none."""
    known = [
        sight for sight in sights if sight.ran_out or sight.fitted or sight.log_share is not None
    ]
    side = [1 if s.ran_out else 0 if s.log_share is not None else -1 for s in known]
    return _rows(known), Observations(
        value=np.array([sight.log_share or 0.0 for sight in known], dtype=float),
        noise=np.where(np.array(side) == 0, _EXACT, _BOUND).astype(float),
        side=np.array(side, dtype=np.int64),
    )


def _rows(sights: list[Sight]) -> Numbers:
    return np.array([sight.row for sight in sights], dtype=np.intp)
